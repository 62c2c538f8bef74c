// The explorer of the Method page: which entries of real gradients a rule keeps. It looks for
// <div id="meprop-explorer"></div>, loads explorer-data.js beside it, and selects as meprop.select does.
(() => {
  const DATA = new URL("explorer-data.js", document.currentScript.src);
  const SCOPES = {
    map: "each map, over all images (the paper)",
    sample: "each map of each image",
    layer: "the whole layer",
    mixed: "each image, over all its maps",
  };

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

  function gradient(layer) {
    const mask = bytes(layer.mask);
    const values = new Float32Array(bytes(layer.values).buffer);
    const grad = new Float32Array(layer.shape.reduce((a, b) => a * b));
    for (let i = 0, n = 0; i < grad.length; i++)
      if ((mask[i >> 3] >> (i & 7)) & 1) grad[i] = values[n++];
    return grad;
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

  // meprop.select with TopK(ratio, scope=scope): 1 where an entry is kept.
  function select(grad, shape, ratio, scope) {
    const kept = new Uint8Array(grad.length);
    for (const group of groups(shape, scope)) {
      const k = Math.max(1, round(ratio * group.length));
      // Array.prototype.sort is stable: among equals the first stays first.
      group.sort((i, j) => Math.abs(grad[j]) - Math.abs(grad[i]));
      for (const i of group.slice(0, k)) kept[i] = 1;
    }
    return kept;
  }

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const percent = (share) =>
    `${(100 * share).toLocaleString("en", { maximumSignificantDigits: 3 })}%`;

  function choice(title, name, options, chosen) {
    const box = element("fieldset", {}, element("legend", {}, title));
    for (const [value, text] of Object.entries(options)) {
      const input = element("input", { type: "radio", name: `explorer-${name}`, value });
      input.checked = value === chosen;
      box.append(element("label", {}, input, ` ${text}`));
    }
    return box;
  }

  function build(root, data) {
    const layers = Object.fromEntries(
      data.layers.map((layer) => [layer.name, { ...layer, grad: gradient(layer) }]),
    );
    const names = Object.fromEntries(data.layers.map((it) => [it.name, it.name]));
    const slider = element("input", {
      type: "range", min: 0, max: 300, step: 1, id: "explorer-ratio",
    });
    slider.value = 170; // 5%
    const output = element("output", { for: "explorer-ratio" });
    const said = element("p", { class: "explorer-said", "aria-live": "polite" });
    const grid = element("div", { class: "explorer-maps" });
    root.replaceChildren(
      element("div", { class: "explorer-controls" },
        choice("Layer", "layer", names, data.layers[0].name),
        choice("The largest of", "scope", SCOPES, "map"),
        element("p", { class: "explorer-ratio" },
          element("label", { for: "explorer-ratio" }, "Ratio kept "), slider, " ", output)),
      said,
      grid,
      element("p", { class: "explorer-key" },
        element("span", { class: "kept" }, "kept"), " ",
        element("span", { class: "dropped" }, "left out"), " ",
        element("span", { class: "zero" }, "zero already")),
    );

    const value = (name) => root.querySelector(`[name=explorer-${name}]:checked`).value;
    // Two significant digits, from 0.1% to 100%, evenly on a logarithmic scale.
    const ratio = () => Number((10 ** (slider.value / 100 - 3)).toPrecision(2));

    let shown;
    function lay(layer) {
      const [samples, maps, height, width] = layer.shape;
      grid.style.setProperty("--maps", maps);
      grid.replaceChildren(element("span", { class: "explorer-head" }, "map"));
      layer.maps.forEach((map) =>
        grid.append(element("span", { class: "explorer-head" }, `${map}`)));
      for (let b = 0; b < samples; b++) {
        const digit = element("canvas", {
          width: 28, height: 28, role: "img", class: "explorer-digit",
          "aria-label": `image ${b + 1}, the digit ${data.images.labels[b]}`,
        });
        paint(digit, 28, 28, (i) => [0, 0, 0, bytes(data.images.bytes)[b * 784 + i]]);
        grid.append(digit);
        for (let c = 0; c < maps; c++)
          grid.append(element("canvas", {
            width, height, role: "img",
            "aria-label": `gradient of image ${b + 1} at map ${layer.maps[c]}`,
          }));
      }
      grid.append(element("span", { class: "explorer-head" }, "kept"));
      for (let c = 0; c < maps; c++)
        grid.append(element("span", { class: "explorer-share" }));
      shown = layer;
    }

    function paint(canvas, width, height, colour) {
      const context = canvas.getContext("2d");
      const picture = context.createImageData(width, height);
      for (let i = 0; i < width * height; i++) picture.data.set(colour(i), 4 * i);
      context.putImageData(picture, 0, 0);
    }

    const colours = () =>
      ["kept", "dropped"].map((name) => {
        const text = getComputedStyle(root.querySelector(`.explorer-key .${name}`), "::before");
        return text.backgroundColor.match(/\d+/g).slice(0, 3).map(Number);
      });

    function redraw() {
      const layer = layers[value("layer")];
      if (layer !== shown) lay(layer);
      const { grad, shape } = layer;
      const [samples, maps, height, width] = shape;
      const size = height * width;
      const kept = select(grad, shape, ratio(), value("scope"));
      const [on, off] = colours();
      const canvases = grid.querySelectorAll("canvas:not(.explorer-digit)");
      const shares = grid.querySelectorAll(".explorer-share");
      let count = 0, useful = 0, nonzero = 0, squares = 0, squaresKept = 0;
      const most = grad.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
      for (let c = 0; c < maps; c++) {
        let own = 0;
        for (let b = 0; b < samples; b++) {
          const start = (b * maps + c) * size;
          paint(canvases[b * maps + c], width, height, (i) => {
            const strength = Math.sqrt(Math.abs(grad[start + i]) / most);
            if (!grad[start + i]) return [0, 0, 0, 0];
            return kept[start + i] ? [...on, 255] : [...off, 50 + 150 * strength];
          });
          for (let i = start; i < start + size; i++) {
            own += kept[i];
            nonzero += grad[i] !== 0;
            useful += kept[i] && grad[i] !== 0;
            squares += grad[i] * grad[i];
            squaresKept += kept[i] ? grad[i] * grad[i] : 0;
          }
        }
        count += own;
        shares[c].textContent = percent(own / (samples * size));
      }
      output.textContent = percent(ratio());
      slider.setAttribute("aria-valuetext", percent(ratio()));
      const norm = squares ? Math.sqrt(squaresKept / squares) : 1;
      said.replaceChildren(
        `Of ${grad.length.toLocaleString("en")} entries, ${nonzero.toLocaleString("en")} are not zero. `,
        `The rule keeps ${count.toLocaleString("en")}, among them ${useful.toLocaleString("en")} `,
        "that are not zero, with ",
        element("b", {}, percent(norm)),
        " of the gradient's norm.",
      );
      // For whoever wants to check.
      root.state = { layer: layer.name, scope: value("scope"), ratio: ratio(), norm, kept };
    }

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
