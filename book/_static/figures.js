// What is wider than the page is moved sideways in its own box, by keyboard too: figures and tables.
const boxes = () => {
  const wide = "figure:has(> img.wide), .pst-scrollable-table-container";
  for (const box of document.querySelectorAll(wide)) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
};
addEventListener("load", boxes);
addEventListener("resize", boxes);
