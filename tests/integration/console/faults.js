// What makes a page hard to use: unlabelled inputs, weak contrast, bad headings. Returns texts.
() => {
  const faults = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const isShown = (e) => e.checkVisibility({ visibilityProperty: true });
  for (const e of all("input:not([type=hidden]), select"))
    if (!e.labels.length && !e.getAttribute("aria-label")) faults.push(`no label: ${e.outerHTML}`);
  for (const e of all("button, a[href]"))
    if (isShown(e) && !e.textContent.trim()) faults.push(`no text: ${e.outerHTML}`);
  if (all("h1").length !== 1) faults.push(`${all("h1").length} h1`);
  if (!document.documentElement.lang) faults.push("no language");
  if (!document.title) faults.push("no title");
  const ids = all("[id]").map((e) => e.id);
  const repeated = ids.filter((id, n) => ids.indexOf(id) !== n);
  if (repeated.length) faults.push(`ids used twice: ${repeated}`);
  for (const e of all("[aria-labelledby], [aria-describedby], label[for]"))
    for (const id of (e.getAttribute("aria-labelledby") ?? e.getAttribute("aria-describedby") ?? e.htmlFor).split(" "))
      if (!document.getElementById(id)) faults.push(`no element ${id}`);
  for (const e of all("th")) if (!e.scope) faults.push(`no scope: ${e.outerHTML}`);

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const pixel = (colour, under) => {
    canvas.fillStyle = under;
    canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return `rgb(${[...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)})`;
  };
  const background = (e) => (e ? pixel(getComputedStyle(e).backgroundColor, background(e.parentElement)) : "white");
  const luminance = (rgb) => {
    const [r, g, b] = rgb.match(/\d+/g).map((v) => {
      const c = v / 255;
      return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const weak = new Set();
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !isShown(e) || e.closest("canvas, noscript, template, :disabled, [aria-hidden=true]")) continue;
    const under = background(e);
    const [low, high] = [luminance(under), luminance(pixel(getComputedStyle(e).color, under))].sort((a, b) => a - b);
    if ((high + 0.05) / (low + 0.05) < 4.5) weak.add(`weak contrast: ${e.className || e.tagName} ${getComputedStyle(e).color} on ${under}`);
  }
  return [...faults, ...weak];
}
