// Makes the table of runs sortable by its heads and filterable by words.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table#tab-runs")) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const text = (row, column) => row.cells[column].textContent.trim();

    const label = document.createElement("label");
    label.className = "runs-filter";
    label.textContent = "Filter ";
    const filter = document.createElement("input");
    filter.type = "search";
    filter.placeholder = "such as: paper table3 0.6";
    const shown = document.createElement("span");
    shown.setAttribute("role", "status");
    label.append(filter);
    (table.closest(".pst-scrollable-table-container") ?? table).before(label, shown);
    shown.className = "runs-shown";
    const refresh = () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const row of rows) {
        const cells = [...row.cells].map((cell) => cell.textContent.trim().toLowerCase());
        // A number has to be a whole word of a cell, so that 1 does not find 10.
        const fits = (word) =>
          cells.some((cell) =>
            /^[\d.]+$/.test(word) ? cell.split(/[\s,]+/).includes(word) : cell.includes(word));
        row.hidden = !words.every(fits);
        count += !row.hidden;
      }
      shown.textContent = `${count} of ${rows.length} shown`;
    };
    filter.addEventListener("input", refresh);
    refresh();

    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.querySelector("p")?.childNodes ?? head.childNodes);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const order = new Intl.Collator("en", { numeric: true });
        const sign = down ? -1 : 1;
        rows.sort((a, b) => {
          const [x, y] = [text(a, column), text(b, column)];
          // Empty cells stay at the end; decimals are compared as numbers.
          if (!x || !y) return (!x) - (!y);
          const [p, q] = [Number(x), Number(y)];
          return sign * (isNaN(p) || isNaN(q) ? order.compare(x, y) : p - q);
        });
        body.append(...rows);
      });
    });
  }
});
