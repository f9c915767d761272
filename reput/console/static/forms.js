// What the forms of Messages and Live tail share: their conditions, and errors beside fields.

/** The conditions of a form that are set, in the form's order. */
export function conditions(form) {
  const set = [...new FormData(form)].filter(([, value]) => value.trim() !== "");
  return new URLSearchParams(set);
}

/** The URL of this page's JSON twin with conditions. */
export function apiUrl(params) {
  return `/api${location.pathname}?${params}`;
}

/** Why a stream was refused: {error, parameter}; null if it is not refused any more. */
export async function refusal(url) {
  const stop = new AbortController();
  try {
    const response = await fetch(url, { signal: stop.signal });
    if (response.ok) return null;
    return await response.json();
  } catch {
    return { error: "The server does not answer." };
  } finally {
    stop.abort();
  }
}

/** Show an error beside the field that it names, else in the page's own place for errors. */
export function showError(form, { error, parameter }) {
  const place = parameter && form.querySelector(`[data-error-of="${CSS.escape(parameter)}"]`);
  if (!place) {
    const failed = document.getElementById("failed");
    failed.firstElementChild.textContent = error;
    failed.hidden = false;
    return;
  }
  place.textContent = error.replace(`${parameter}: `, "");
  place.hidden = false;
  const more = place.closest("details");
  if (more) more.open = true;
  for (const input of form.querySelectorAll(`[name="${CSS.escape(parameter)}"]`)) {
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", place.id);
  }
}

export function clearErrors(form) {
  document.getElementById("failed").hidden = true;
  for (const place of form.querySelectorAll("[data-error-of]")) place.hidden = true;
  for (const input of form.querySelectorAll("[aria-invalid]")) {
    input.removeAttribute("aria-invalid");
    input.removeAttribute("aria-describedby");
  }
}

/** Let a condition be given several times: a filled last input gets an empty one once it is used. */
export function growFields(form) {
  for (const field of form.querySelectorAll("[data-several]")) {
    field.addEventListener("focusin", () => grow(field));
    field.addEventListener("input", () => grow(field));
  }
}

function grow(field) {
  const inputs = [...field.querySelectorAll("input")];
  const last = inputs.at(-1);
  if (last.value === "") return;
  const next = last.cloneNode();
  next.value = "";
  next.placeholder = "or another";
  next.removeAttribute("id");
  next.setAttribute("aria-label", `${field.querySelector("label").textContent} ${inputs.length + 1}`);
  last.after(next);
}

/** Suggest topics whose name contains what is typed. */
export function suggestTopics(form) {
  const list = document.getElementById("topics");
  let timer;
  form.addEventListener("input", (event) => {
    if (event.target.name !== "topic") return;
    clearTimeout(timer);
    timer = setTimeout(() => suggest(list, event.target.value), 150);
  });
}

async function suggest(list, text) {
  const query = new URLSearchParams({ filter: text, system: "1" });
  const response = await fetch(`/api${document.body.dataset.brokerUrl}?${query}`);
  if (!response.ok) return;
  const { topics } = await response.json();
  list.replaceChildren(
    ...(topics ?? []).slice(0, 20).map(({ topic }) => {
      const option = document.createElement("option");
      option.value = topic;
      return option;
    }),
  );
}
