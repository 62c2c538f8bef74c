// The explorer of the Method page: which entries of real gradients a rule passes back. It looks for
// <div id="meprop-explorer"></div>, loads explorer-data.js beside it, and selects as meprop.select
// does. Links with data-explorer="ratio=0.05 decay=0.6" set its controls.
(() => {
  const DATA = new URL("explorer-data.js", document.currentScript.src);
  const SCOPES = {
    map: "each map, over all images (the paper)",
    sample: "each map of each image",
    layer: "the whole layer",
    mixed: "each image, over all its maps",
  };

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

  // The gradients of a layer, one array a step.
  function gradients(layer) {
    const mask = bytes(layer.mask);
    const values = new Float32Array(bytes(layer.values).buffer);
    const [steps, ...rest] = layer.shape;
    const size = rest.reduce((a, b) => a * b);
    const all = new Float32Array(steps * size);
    for (let i = 0, n = 0; i < all.length; i++)
      if ((mask[i >> 3] >> (i & 7)) & 1) all[i] = values[n++];
    return Array.from({ length: steps }, (_, t) => all.subarray(t * size, (t + 1) * size));
  }

  // Python's round: a half goes to the even neighbour.
  function round(x) {
    const below = Math.floor(x);
    const rest = x - below;
    return rest === 0.5 ? below + (below % 2) : below + (rest > 0.5);
  }

  // The indices of each group, in the order in which equal magnitudes are taken.
  function groups([samples, maps, height, width], scope) {
    const size = height * width;
    const found = new Map();
    for (let b = 0; b < samples; b++)
      for (let c = 0; c < maps; c++) {
        const key = { map: c, sample: b * maps + c, layer: 0, mixed: b }[scope];
        if (!found.has(key)) found.set(key, []);
        const start = (b * maps + c) * size;
        for (let i = 0; i < size; i++) found.get(key).push(start + i);
      }
    return [...found.values()];
  }

  // Eq. 15 over the steps, in float32 as torch has it; without decay the magnitude alone.
  function scores(grads, decay) {
    const [old, now] = [Math.fround(decay), Math.fround(1 - decay)];
    let history = new Float32Array(grads[0].length);
    for (const grad of grads) {
      const next = new Float32Array(grad.length);
      for (let i = 0; i < grad.length; i++)
        next[i] = decay
          ? Math.fround(old * history[i]) + Math.fround(now * Math.abs(grad[i]))
          : Math.abs(grad[i]);
      history = next;
    }
    return history;
  }

  // meprop.select with TopK(ratio, decay, scope) at the last of these steps: 1 where selected.
  function select(grads, shape, ratio, decay, scope) {
    const score = scores(grads, decay);
    const selected = new Uint8Array(score.length);
    for (const group of groups(shape, scope)) {
      const k = Math.max(1, round(ratio * group.length));
      // Array.prototype.sort is stable: among equals the first stays first.
      group.sort((i, j) => score[j] - score[i]);
      for (const i of group.slice(0, k)) selected[i] = 1;
    }
    return selected;
  }

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const percent = (share, digits = 3) =>
    `${(100 * share).toLocaleString("en", { maximumSignificantDigits: digits })}%`;
  const whole = (number) => number.toLocaleString("en");

  function choice(title, name, options, chosen) {
    const box = element("fieldset", { class: `explorer-${name}` }, element("legend", {}, title));
    for (const [value, text] of Object.entries(options)) {
      const input = element("input", { type: "radio", name: `explorer-${name}`, value });
      input.checked = value === chosen;
      box.append(element("label", {}, input, " ", text));
    }
    return box;
  }

  function slider(title, name, attributes, value) {
    const input = element("input", { type: "range", id: `explorer-${name}`, ...attributes });
    input.value = value;
    const output = element("output", { for: input.id });
    const say = (text) => {
      output.textContent = text;
      input.setAttribute("aria-valuetext", text);
    };
    const line = element("p", { class: "explorer-slider" },
      element("label", { for: input.id }, title), input, output);
    return { input, say, line };
  }

  // What records and measurements say of the nearest choice: accuracy and time.
  function costs(known, layer, ratio, decay, scope) {
    const kept = (share) => `${Number((100 * share).toPrecision(2))}%`;
    const points = (x) => `${x < -0.005 ? "\u2212" : "+"}${Math.abs(x).toFixed(2)}`;
    const nearest = (pattern, far) => Object.keys(known).map((key) => key.match(pattern))
      .filter(Boolean).sort((a, b) => far(a) - far(b))[0];
    const away = (share) => Math.abs(Math.log(share / ratio));
    const [speed, , measured] = nearest(/^speed-(conv\d)-([\d.]+)$/,
      ([, name, share]) => (name === layer ? away(share) : 1e9));
    const [, row, share, memory] = nearest(/^(table2-k(\d+)-d(\d+))-estimate$/,
      ([, , k, d]) => 10 * Math.abs(d / 10 - decay) + away(k / 100));
    const [estimate, low, high] = ["estimate", "low", "high"].map((it) => known[`${row}-${it}`]);
    const time = `With ${kept(measured)}, ${layer}'s backward pass is ${known[speed].toFixed(2)} ` +
      `times as fast as a dense one${known[speed] < 1 ? ": it gets slower" : ""}.`;
    if (scope !== "map") return `${time} Only the paper's scope was trained with all images.`;
    return `${time} A network trained with ${kept(share / 100)} and a decay of ${memory / 10} ` +
      `comes out ${points(estimate)} points of test accuracy from one with all gradients ` +
      `(${points(low)} to ${points(high)}).`;
  }

  const ORDINALS = ["first", "second", "third", "fourth"];
  const CELL = 8; // of a canvas, in its own pixels; there are 28 pixels a side in an image

  function build(root, data) {
    const layers = Object.fromEntries(data.layers.map((layer) => {
      const [steps, ...shape] = layer.shape;
      return [layer.name, { ...layer, steps, shape, grads: gradients(layer) }];
    }));
    const { steps, shape: [samples, maps] } = layers[data.layers[0].name];
    const pixels = bytes(data.images.bytes);

    const ratioSlider = slider("Passed back", "ratio", { min: 0, max: 300, step: 1 }, 170);
    const decaySlider = slider("Decay", "decay", { min: 0, max: 95, step: 5 }, 0);
    const stepSlider = slider("Training step", "step", { min: 1, max: steps, step: 1 }, steps);
    const names = Object.fromEntries(data.layers.map((it) => [it.name, it.name]));
    const numbers = Object.fromEntries(Array.from({ length: maps }, (_, c) => [`m${c}`, ""]));
    const said = element("p", { class: "explorer-said", "aria-live": "polite" });
    const known = JSON.parse(document.getElementById("explorer-costs").textContent);
    const cost = element("p", { class: "explorer-cost" });
    const cell = element("p", { class: "explorer-cell", "aria-live": "polite" });
    const digits = element("div", { class: "explorer-digits" });
    const cards = Array.from({ length: samples }, (_, b) => {
      const canvas = element("canvas",
        { width: 28 * CELL, height: 28 * CELL, tabindex: 0, role: "img" });
      const name = element("span", { class: "explorer-name" });
      const bar = element("span", { class: "explorer-bar" });
      const share = element("span", { class: "explorer-share" });
      digits.append(element("div", {}, canvas, name,
        element("span", { class: "explorer-line" }, bar), share));
      return { canvas, name, bar, share };
    });
    root.replaceChildren(
      element("p", { class: "explorer-question" }, "Which digit gets the gradient?"),
      said,
      cost,
      digits,
      cell,
      element("p", { class: "explorer-key" },
        element("span", { class: "plus" }, "passed back, positive"), " ",
        element("span", { class: "minus" }, "negative"), " ",
        element("span", { class: "empty" }, "selected, but zero"), " ",
        element("span", { class: "lost" }, "left out")),
      choice("Feature map", "map", numbers),
      element("div", { class: "explorer-controls" },
        ratioSlider.line, decaySlider.line, stepSlider.line,
        choice("Layer", "layer", names, data.layers[0].name),
        choice("The largest of", "scope", SCOPES, "map")),
    );

    const value = (name) => root.querySelector(`[name=explorer-${name}]:checked`).value;
    // Two significant digits, from 0.1% to 100%, evenly on a logarithmic scale.
    const ratio = () => Number((10 ** (ratioSlider.input.value / 100 - 3)).toPrecision(2));
    const decay = () => decaySlider.input.value / 100;
    const digit = (t, b) => data.images.labels[t][b];

    // What a reader points at, in the current map: which image, row and column.
    let pointed = null;

    function paint(b, now) {
      const { layer, t, kept, map } = now;
      const [, , height, width] = layer.shape;
      const style = getComputedStyle(root);
      const colour = (name) => style.getPropertyValue(`--explorer-${name}`);
      const context = cards[b].canvas.getContext("2d");
      const side = (28 * CELL) / width;
      context.clearRect(0, 0, 28 * CELL, 28 * CELL);
      context.fillStyle = colour("ink");
      for (let i = 0; i < 784; i++) {
        context.globalAlpha = (0.3 * pixels[(t * samples + b) * 784 + i]) / 255;
        context.fillRect((i % 28) * CELL, Math.floor(i / 28) * CELL, CELL, CELL);
      }
      const start = (b * maps + map) * height * width;
      for (let i = 0; i < height * width; i++) {
        const grad = layer.grads[t][start + i];
        if (!grad && !kept[start + i]) continue;
        const [x, y] = [(i % width) * side, Math.floor(i / width) * side];
        const name = !kept[start + i] ? "lost" : grad > 0 ? "plus" : grad < 0 ? "minus" : "empty";
        context.globalAlpha = 1;
        context.fillStyle = context.strokeStyle = colour(name);
        context.lineWidth = 1;
        if (grad) context.fillRect(x + 1, y + 1, side - 1, side - 1);
        else context.strokeRect(x + 1.5, y + 1.5, side - 2, side - 2);
      }
      if (pointed && pointed.b === b) {
        context.globalAlpha = 1;
        context.strokeStyle = colour("ink");
        context.lineWidth = 3;
        context.strokeRect(pointed.x * side, pointed.y * side, side, side);
      }
    }

    function describe(now) {
      if (!pointed) {
        cell.textContent = "Point at a square, or go to a digit by Tab and move with the arrows.";
        return;
      }
      const { layer, t, kept, map } = now;
      const [, , height, width] = layer.shape;
      pointed.x = Math.min(pointed.x, width - 1);
      pointed.y = Math.min(pointed.y, height - 1);
      const i = ((pointed.b * maps + map) * height + pointed.y) * width + pointed.x;
      const grad = layer.grads[t][i];
      const size = Math.abs(grad).toPrecision(2).replace(/e-(\d+)/, " \u00d7 10^\u2212$1");
      const signed = grad ? `${grad < 0 ? "\u2212" : "+"}${size}` : "0";
      const fate = kept[i] ? (grad ? "passed back" : "selected, but zero") :
        grad ? "left out" : "zero already";
      cell.textContent = `The ${digit(t, pointed.b)}, map ${layer.maps[map]}, row ` +
        `${pointed.y + 1}, column ${pointed.x + 1}: ${signed}, ${fate}.`;
    }

    // The feature map with the largest gradient: some have none to show.
    function strongest(layer, t) {
      const size = layer.shape[2] * layer.shape[3];
      const squares = new Array(maps).fill(0);
      layer.grads[t].forEach((grad, i) => (squares[Math.floor(i / size) % maps] += grad * grad));
      return squares.indexOf(Math.max(...squares));
    }

    let now;
    function redraw() {
      const layer = layers[value("layer")];
      const t = stepSlider.input.value - 1;
      const grad = layer.grads[t];
      if (!now || layer !== now.layer)
        root.querySelector(`[value=m${strongest(layer, t)}]`).checked = true;
      const kept = select(layer.grads.slice(0, t + 1), layer.shape, ratio(), decay(), value("scope"));
      const map = Number(value("map").slice(1));
      now = { layer, t, kept, map };

      const size = grad.length / (samples * maps);
      const perDigit = new Array(samples).fill(0);
      const perMap = new Array(maps).fill(0);
      let [chosen, passed, nonzero, squares, squaresKept] = [0, 0, 0, 0, 0];
      for (let i = 0; i < grad.length; i++) {
        const square = grad[i] * grad[i];
        chosen += kept[i];
        nonzero += grad[i] !== 0;
        squares += square;
        if (!kept[i] || !grad[i]) continue;
        passed++;
        squaresKept += square;
        perDigit[Math.floor(i / (maps * size))]++;
        perMap[Math.floor(i / size) % maps]++;
      }
      const norm = squares ? Math.sqrt(squaresKept / squares) : 1;

      const shares = perDigit.map((count) => (passed ? count / passed : 0));
      const called = (b) => {
        const [right, guess] = [digit(t, b), data.images.guesses[t][b]];
        const alike = data.images.labels[t].flatMap((it, place) => (it === right ? [place] : []));
        const which = alike.length > 1 ? `${ORDINALS[alike.indexOf(b)]} ${right}` : right;
        return right === guess ? `the ${which}` : `the ${which}, read as ${guess},`;
      };
      const most = shares.indexOf(Math.max(...shares));
      const least = shares.indexOf(Math.min(...shares));
      const sentence = (text) => text[0].toUpperCase() + text.slice(1);
      said.replaceChildren(
        element("b", {}, `${sentence(called(most))} gets ${percent(shares[most], 2)}`),
        ` of what is passed back, ${called(least)} gets ${percent(shares[least], 2)}. `,
        `Of ${whole(nonzero)} entries that are not zero, ${whole(passed)} are passed back, with `,
        element("b", {}, percent(norm)), " of the gradient's norm",
        chosen > passed ? `; ${whole(chosen - passed)} more are selected, but zero.` : ".",
      );
      cost.textContent = costs(known, layer.name, ratio(), decay(), value("scope"));
      cards.forEach(({ canvas, name, bar, share }, b) => {
        name.textContent = sentence(called(b)).replace(/,$/, "");
        share.textContent = percent(shares[b]);
        bar.style.width = percent(shares[b]);
        canvas.setAttribute("aria-label",
          `Gradient of ${called(b).replace(/,$/, "")}, at map ${layer.maps[map]}`);
        paint(b, now);
      });
      root.querySelectorAll(".explorer-map label").forEach((label, c) => {
        label.lastChild.textContent = `${layer.maps[c]} `;
        label.title = `map ${layer.maps[c]}: ${percent(perMap[c] / (samples * size))} passed back`;
        label.style.setProperty("--share", perMap[c] / Math.max(...perMap, 1));
      });
      ratioSlider.say(percent(ratio()));
      decaySlider.say(`${decay()}`);
      stepSlider.say(`${data.about.steps[t]}`);
      describe(now);
      // For whoever wants to check.
      root.state = {
        layer: layer.name, scope: value("scope"), ratio: ratio(), decay: decay(), step: t, map,
        norm, kept, passed, shares, perMap,
      };
    }

    function point(b, x, y) {
      const [, , height, width] = now.layer.shape;
      const before = pointed && pointed.b;
      pointed = { b, x: Math.min(Math.max(x, 0), width - 1), y: Math.min(Math.max(y, 0), height - 1) };
      if (before !== null && before !== b) paint(before, now);
      paint(b, now);
      describe(now);
    }
    cards.forEach(({ canvas }, b) => {
      const follow = (event) => {
        const box = canvas.getBoundingClientRect();
        const side = box.width / now.layer.shape[3];
        point(b, Math.floor((event.clientX - box.left) / side),
          Math.floor((event.clientY - box.top) / side));
      };
      canvas.addEventListener("pointermove", follow);
      canvas.addEventListener("pointerdown", follow);
      canvas.addEventListener("keydown", (event) => {
        const move = {
          ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
        }[event.key];
        if (!move) return;
        event.preventDefault();
        const from = pointed && pointed.b === b ? pointed : { x: 0, y: 0 };
        point(b, from.x + move[0], from.y + move[1]);
      });
    });

    for (const link of document.querySelectorAll("a[data-explorer]"))
      link.addEventListener("click", () => {
        const wanted = Object.fromEntries(
          link.dataset.explorer.split(" ").map((pair) => pair.split("=")));
        for (const name of ["layer", "scope"])
          if (wanted[name]) root.querySelector(`[name=explorer-${name}][value=${wanted[name]}]`).checked = true;
        if (wanted.ratio) ratioSlider.input.value = Math.round(100 * (Math.log10(wanted.ratio) + 3));
        if (wanted.decay) decaySlider.input.value = Math.round(100 * wanted.decay);
        if (wanted.step) stepSlider.input.value = wanted.step;
        redraw();
      });

    root.addEventListener("input", redraw);
    root.addEventListener("keydown", (event) => {
      // The theme turns pages with the arrows.
      if (event.key.startsWith("Arrow")) event.stopPropagation();
    });
    new MutationObserver(redraw).observe(document.documentElement, {
      attributeFilter: ["data-theme"],
    });
    redraw();
  }

  document.addEventListener("DOMContentLoaded", () => {
    const root = document.getElementById("meprop-explorer");
    if (!root) return;
    const script = element("script", { src: DATA.href });
    script.addEventListener("load", () => build(root, window.mepropExplorer));
    document.head.append(script);
  });
})();
