// Claims: verdicts for another margin and level, by the rules of notebooks/06-claims.ipynb.
"use strict";
(() => {
  const logGamma = (x) => {
    const series = [76.18009172947146, -86.50532032941677, 24.01409824083091,
      -1.231739572450155, 0.1208650973866179e-2, -0.5395239384953e-5];
    const sum = series.reduce((total, c, n) => total + c / (x + n + 1), 1.000000000190015);
    return (x + 0.5) * Math.log(x + 5.5) - x - 5.5 + Math.log(2.5066282746310005 * sum / x);
  };
  // The regularised incomplete beta function, as a continued fraction (Lentz).
  const beta = (x, a, b) => {
    if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
    if (x > (a + 1) / (a + b + 2)) return 1 - beta(1 - x, b, a);
    let c = 1, d = 1 / (1 - (a + b) * x / (a + 1)), fraction = d;
    for (let m = 1; m < 300; m++) {
      for (const step of [m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
        -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))]) {
        d = 1 / (1 + step * d);
        c = 1 + step / c;
        fraction *= d * c;
      }
      if (Math.abs(d * c - 1) < 1e-14) break;
    }
    const front = logGamma(a + b) - logGamma(a) - logGamma(b);
    return Math.exp(front + a * Math.log(x) + b * Math.log(1 - x)) * fraction / a;
  };
  const cdf = (t, df) => {
    const tail = beta(df / (df + t * t), df / 2, 0.5) / 2;
    return t > 0 ? 1 - tail : tail;
  };
  const quantile = (p, df) => {
    let low = 0, high = 1e4;
    for (let n = 0; n < 100; n++) {
      const middle = (low + high) / 2;
      if (cdf(middle, df) < p) low = middle; else high = middle;
    }
    return high;
  };
  // Rows are [estimate, standard error, degrees of freedom].
  const bounds = (rows, level) => rows.map(([estimate, se, df]) => {
    const half = quantile((1 + level) / 2, df) * se;
    return [estimate - half, estimate + half];
  });
  const below = (rows, line) => rows.map(([estimate, se, df]) => cdf((estimate - line) / se, df));
  const above = (rows, line) => rows.map(([estimate, se, df]) => cdf((line - estimate) / se, df));
  const holm = (p) => Math.min(1, Math.min(...p) * p.length); // the smallest of the adjusted ones
  const decide = (holds, fails) => holds ? "supported" : fails ? "not supported" : "undecided";
  const rules = {
    better: (rows, margin, level) => decide(bounds(rows, level).every(([low]) => low > 0),
      holm(below(rows, margin)) < (1 - level) / 2),
    "not worse": (rows, margin, level) => decide(
      bounds(rows, level).every(([low]) => low > -margin),
      holm(below(rows, -margin)) < (1 - level) / 2),
    worse: (rows, margin, level) => decide(bounds(rows, level).every(([, high]) => high < 0),
      bounds(rows, level).every(([low]) => low > -margin)),
    sooner: (rows, margin, level) => decide(bounds(rows, level)[0][0] > 0,
      bounds(rows, level)[0][1] < 1),
    steadier: (rows, margin, level) => decide(bounds(rows, level).every(([, high]) => high < 0),
      holm(above(rows, Math.log(0.9))) < (1 - level) / 2),
    // Pairs of rows: 5% of the gradients, then dropout.
    narrowed: (rows, margin, level) => {
      const each = rows.map((row) => rules.better([row], margin, level));
      return decide(each.every((verdict) => verdict === "supported"), each.some((verdict, n) =>
        n % 2 === 1 && verdict === "supported" && each[n - 1] === "not supported"));
    },
    plausible: ([[least]], margin, level) => decide(least >= 1 - level, true),
  };

  window.mepropRules = rules; // tests compare them with the module's
  document.addEventListener("DOMContentLoaded", () => {
    const source = document.getElementById("claims-data");
    if (!source) return;
    const given = JSON.parse(source.textContent);
    const box = document.createElement("div");
    box.id = "claims-rule";
    box.innerHTML = `
      <p>Another margin, another level: what would the verdicts be?</p>
      <label>margin <input id="claims-margin" type="range" min="0.01" max="0.5" step="0.01"
        value="${given.margin}"> <output></output></label>
      <label>level <input id="claims-level" type="range" min="80" max="99" step="1"
        value="${Math.round(100 * given.level)}"> <output></output></label>
      <p id="claims-now" role="status"></p>`;
    source.before(box);
    const [margin, level] = box.querySelectorAll("input");
    const judge = () => {
      margin.nextElementSibling.value = `${(+margin.value).toFixed(2)} points`;
      level.nextElementSibling.value = `${level.value}%`;
      const count = {};
      for (const [key, { rule, rows, verdict }] of Object.entries(given.claims)) {
        const waits = !(rule in rules) || verdict.startsWith("waiting");
        const now = waits ? verdict : rules[rule](rows, +margin.value, level.value / 100);
        const shown = document.querySelector(`[data-claim="${key}"]`);
        shown.textContent = now;
        shown.className = `verdict ${now.replaceAll(" ", "-")}`;
        shown.classList.toggle("changed", now !== verdict);
        count[now] = (count[now] || 0) + 1;
      }
      const told = Object.entries(count).map(([verdict, number]) => `${number} ${verdict}`);
      box.querySelector("#claims-now").textContent = `${told.join(", ")}.`;
    };
    // The theme turns the page at an arrow key.
    box.addEventListener("keydown", (event) => event.stopPropagation());
    box.addEventListener("input", judge);
    judge();
  });
})();
