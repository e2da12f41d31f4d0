"use strict";
const readout = document.getElementById("readout");
const points = new Map();
let held = null;

function hide() {
  if (held instanceof Element) held.classList.remove("on");
  document.querySelectorAll(".spot").forEach((spot) => spot.remove());
  readout.classList.remove("open");
  held = null;
}

function show(target, text, place) {
  hide();
  held = target;
  readout.textContent = text;
  readout.classList.add("open");
  const box = readout.getBoundingClientRect();
  const left = Math.min(Math.max(8, place.left), document.documentElement.clientWidth - box.width - 8);
  const above = place.top - box.height - 6;
  readout.style.left = left + "px";
  readout.style.top = (above > 4 ? above : place.bottom + 6) + "px";
}

function showToken(token) {
  show(token, token.dataset.n, token.getBoundingClientRect());
  token.classList.add("on");
}

function cellsOf({ names, corners, shape, every, hundredths }) {
  const [[left, top], [right, bottom]] = corners;
  return hundredths.flatMap((row, i) => row.map((value, j) => ({
    x: left + ((j * every + 0.5) / shape[1]) * (right - left),
    y: top + ((i * every + 0.5) / shape[0]) * (bottom - top),
    text: `${names[0]} ${j * every + 1} · ${names[1]} ${i * every + 1} · cosine ${(value / 100).toFixed(2).replace("-", "−")}`,
  })));
}

function pointsOf(svg) {
  if (!points.has(svg)) {
    const content = svg.parentElement.querySelector(":scope > .points");
    const { rows, groups, pictures } = JSON.parse(content.textContent);
    const read = groups.flatMap(([before, between, after, places]) =>
      places.map(([x, y, across, value]) => ({ x, y, text: before + across + between + value + after })));
    points.set(svg, [...read, ...pictures.flatMap(cellsOf)].map((point) => ({ svg, rows, ...point })));
  }
  return points.get(svg);
}

function showPoint(point) {
  const spot = document.createElementNS(point.svg.namespaceURI, "circle");
  for (const [name, value] of Object.entries({ cx: point.x, cy: point.y, r: 6, class: "spot" })) spot.setAttribute(name, value);
  const place = new DOMPoint(point.x, point.y).matrixTransform(point.svg.getScreenCTM());
  show(point, point.text, { left: place.x, top: place.y - 8, bottom: place.y + 8 });
  point.svg.append(spot);
}

function nearest(svg, event) {
  const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const distance = (point) => Math.hypot(point.rows ? 0 : point.x - place.x, point.y - place.y);
  const all = pointsOf(svg).map((point) => [distance(point), point]);
  const [far, point] = all.reduce((best, one) => (one[0] < best[0] ? one : best), [Infinity, null]);
  return far < 24 ? point : null;
}

function showAt(event) {
  const token = event.target.closest(".tokens .t"), svg = event.target.closest("figure > svg");
  const target = token || (svg && nearest(svg, event));
  if (target === held) return;
  if (!target) hide();
  else if (token) showToken(token);
  else showPoint(target);
}

document.addEventListener("pointermove", (event) => {
  if (event.pointerType === "mouse") showAt(event);
});
document.addEventListener("click", showAt);
document.addEventListener("scroll", hide, { passive: true });
document.addEventListener("focusout", hide);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
  const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const line = event.target.closest(".tokens"), svg = event.target.closest("figure > svg");
  if (!way || !(line || svg)) return;
  const all = line ? [...line.querySelectorAll(".t")] : pointsOf(svg);
  if (!all.length) return;
  const now = all.indexOf(held);
  (line ? showToken : showPoint)(all[Math.min(all.length - 1, Math.max(0, now < 0 ? 0 : now + way))]);
  event.preventDefault();
});
