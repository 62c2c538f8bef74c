// Walks through the stepped figure of the Start page. Without this script all steps are listed.
document.addEventListener("DOMContentLoaded", () => {
  for (const figure of document.querySelectorAll(".idea")) {
    const steps = [...figure.querySelectorAll(".idea-steps li")];
    const [back, next] = [".idea-back", ".idea-next"].map((name) => figure.querySelector(name));
    const count = figure.querySelector(".idea-count");
    const list = figure.querySelector(".idea-steps");
    list.setAttribute("aria-live", "polite");
    let step = 1;
    const show = (wanted) => {
      step = Math.min(Math.max(wanted, 1), steps.length);
      figure.dataset.step = step;
      steps.forEach((item, place) => (item.hidden = place + 1 !== step));
      count.textContent = `${step} of ${steps.length}`;
      back.disabled = step === 1;
      next.disabled = step === steps.length;
    };
    back.addEventListener("click", () => show(step - 1));
    next.addEventListener("click", () => show(step + 1));
    figure.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      // The theme turns pages with the same keys.
      event.stopPropagation();
      show(step + move);
    });
    figure.querySelector(".idea-controls").hidden = false;
    show(1);
  }
});
