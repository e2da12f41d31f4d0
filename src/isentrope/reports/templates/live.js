const live = document.getElementById("live");
const places = () => [...document.querySelectorAll("details, input:checked")].map((element) => {
  const owner = element.closest("[id]");
  return [element, `${owner ? owner.id : ""} ${element.value || element.firstElementChild.textContent}`];
});

function keepPlace() {
  const kept = places().filter(([element]) => element.open || element.checked).map(([, name]) => name);
  sessionStorage.setItem("place", JSON.stringify({ top: window.scrollY, kept }));
}

function restorePlace() {
  const { top, kept } = JSON.parse(sessionStorage.getItem("place") || "{}");
  sessionStorage.removeItem("place");
  if (!kept) return;
  document.querySelectorAll("input").forEach((input) => {
    input.checked = kept.includes(`${input.closest("[id]").id} ${input.value}`);
  });
  places().forEach(([element, name]) => { if (kept.includes(name)) element.open = true; });
  window.scrollTo({ top, behavior: "instant" });
}

async function follow() {
  try {
    const state = await (await fetch("/state", { cache: "no-store" })).json();
    if (state.version !== live.dataset.version) {
      keepPlace();
      location.reload();
      return;
    }
    live.textContent = state.says;
  } catch {
    live.textContent = "isentrope view has ended: this is the last state that it showed.";
  }
  setTimeout(follow, 2000);
}

restorePlace();
follow();
