// On a narrow screen a wide figure is moved sideways in its own box, by keyboard too.
const boxes = () => {
  for (const box of document.querySelectorAll("figure:has(> img.wide)")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
};
addEventListener("load", boxes);
addEventListener("resize", boxes);
