"use strict";
const readout = document.getElementById("readout");
let held = null;

function tell(token) {
  if (held) held.classList.remove("on");
  held = token;
  readout.classList.toggle("open", Boolean(token));
  if (!token) return;
  token.classList.add("on");
  readout.textContent = token.dataset.n;
  const at = token.getBoundingClientRect(), box = readout.getBoundingClientRect();
  const left = Math.min(Math.max(8, at.left), document.documentElement.clientWidth - box.width - 8);
  const above = at.top - box.height - 6;
  readout.style.left = left + "px";
  readout.style.top = (above > 4 ? above : at.bottom + 6) + "px";
}

const tokenAt = (event) => event.target.closest(".tokens .t");
document.addEventListener("pointerover", (event) => {
  if (event.pointerType === "mouse") tell(tokenAt(event));
});
document.addEventListener("click", (event) => tell(tokenAt(event)));
document.addEventListener("scroll", () => tell(null), { passive: true });
document.addEventListener("keydown", (event) => {
  const line = event.target.closest(".tokens");
  const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (event.key === "Escape") tell(null);
  if (!line || !way) return;
  const all = [...line.querySelectorAll(".t")];
  const now = all.indexOf(held);
  tell(all[Math.min(all.length - 1, Math.max(0, now < 0 ? 0 : now + way))]);
  event.preventDefault();
});
document.addEventListener("focusout", () => tell(null));
