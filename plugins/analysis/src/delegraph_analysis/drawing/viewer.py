"""Hold the script of a page, which moves and scales its pictures.

Without the script, pictures scroll, and links lead to boxes.
"""

from __future__ import annotations

# The script contains no text of a model, and inserts no markup into the page. It has no
# "<" and "&", so that the page is also valid XML.
SCRIPT = """
"use strict";
const SMALLEST = 0.002, LARGEST = 4, READABLE = 0.7, STEP = 1.25;

class Viewer {
  constructor(frame) {
    this.frame = frame;
    this.svg = frame.querySelector("svg");
    this.width = this.svg.width.baseVal.value;
    this.height = this.svg.height.baseVal.value;
    this.delegates = [...frame.querySelectorAll("a.delegate")];
    // Of a thousand boxes none is a stop of the Tab key: keys and tables lead to them.
    for (const link of frame.querySelectorAll("a")) link.setAttribute("tabindex", "-1");
    this.next = 0;
    this.scale = 1;
    this.dragged = -Infinity;
    this.addTools();
    this.listen();
    this.open();
    this.frame.style.height = "";  // no higher than what it shows, from where it opens
  }

  addTools() {
    const tools = document.createElement("div");
    tools.className = "tools";
    tools.setAttribute("role", "group");
    tools.setAttribute("aria-label", "Tools of " + this.frame.getAttribute("aria-label"));
    const add = (label, title, act) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.title = title;
      button.addEventListener("click", act);
      tools.append(button);
      return button;
    };
    add("\\u2212", "smaller (key -)", () => this.zoom(this.scale / STEP)).setAttribute("aria-label", "Smaller");
    this.shown = add("100 %", "natural size (key 1)", () => this.zoom(1));
    add("+", "larger (key +)", () => this.zoom(this.scale * STEP)).setAttribute("aria-label", "Larger");
    add("Whole", "all of the graph (key 0)", () => this.fit(this.box(this.svg)));
    if (this.delegates.length > 0) {
      add("\\u2039", "the delegate before (key p)", () => this.step(-1)).setAttribute("aria-label", "Delegate before");
      add("Delegates", "back to where the graph opens (key d)", () => this.open());
      add("\\u203a", "the next delegate (key n)", () => this.step(1)).setAttribute("aria-label", "Next delegate");
    }
    this.frame.before(tools);
  }

  listen() {
    const keys = {
      "+": () => this.zoom(this.scale * STEP), "=": () => this.zoom(this.scale * STEP),
      "-": () => this.zoom(this.scale / STEP), "1": () => this.zoom(1), "0": () => this.fit(this.box(this.svg)),
      d: () => this.open(), n: () => this.step(1), p: () => this.step(-1),
    };
    this.frame.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
      keys[event.key]();
      event.preventDefault();
    });
    this.frame.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) { if (!event.metaKey) return; }
      event.preventDefault();
      this.zoom(this.scale * Math.exp(-event.deltaY / 300), event.clientX, event.clientY);
    }, {passive: false});
    this.frame.addEventListener("click", (event) => {  // a drag that ends on a box is no click on it
      if (50 > event.timeStamp - this.dragged) event.preventDefault();
    });
    this.frame.addEventListener("dragstart", (event) => event.preventDefault());
    this.frame.addEventListener("pointerdown", (event) => this.drag(event));
  }

  drag(down) {
    if (down.button !== 0 || down.pointerType !== "mouse") return;
    const frame = this.frame, left = frame.scrollLeft, top = frame.scrollTop, stop = new AbortController();
    addEventListener("pointermove", (event) => {
      const x = event.clientX - down.clientX, y = event.clientY - down.clientY;
      if (4 >= Math.abs(x) + Math.abs(y)) return;
      frame.classList.add("dragged");
      frame.scrollTo(left - x, top - y);
    }, {signal: stop.signal});
    const end = (event) => {
      stop.abort();
      if (frame.classList.contains("dragged")) this.dragged = event.timeStamp;
      frame.classList.remove("dragged");
    };
    for (const name of ["pointerup", "pointercancel"]) addEventListener(name, end, {signal: stop.signal});
  }

  // Where an element is drawn, in the picture's own pixels.
  box(element) {
    const around = this.svg.getBoundingClientRect(), at = element.getBoundingClientRect();
    const x = (at.left - around.left) / this.scale, y = (at.top - around.top) / this.scale;
    return {x, y, right: x + at.width / this.scale, bottom: y + at.height / this.scale};
  }

  // Scale so that a point of the window keeps the place of the picture that it shows.
  zoom(to, x, y) {
    const frame = this.frame.getBoundingClientRect(), before = this.svg.getBoundingClientRect();
    if (x === undefined) { x = frame.left + frame.width / 2; y = frame.top + frame.height / 2; }
    const right = (x - before.left) / this.scale, down = (y - before.top) / this.scale;
    this.frame.style.height = this.frame.style.height || frame.height + "px";
    this.scale = Math.min(LARGEST, Math.max(SMALLEST, to));
    this.svg.setAttribute("width", this.width * this.scale);
    this.svg.setAttribute("height", this.height * this.scale);
    const after = this.svg.getBoundingClientRect();
    this.frame.scrollLeft += after.left + right * this.scale - x;
    this.frame.scrollTop += after.top + down * this.scale - y;
    this.shown.textContent = Math.round(100 * this.scale) + " %";
  }

  center(part) {
    const frame = this.frame.getBoundingClientRect(), svg = this.svg.getBoundingClientRect();
    const x = (part.x + part.right) / 2 * this.scale, y = (part.y + part.bottom) / 2 * this.scale;
    this.frame.scrollLeft += svg.left + x - frame.left - frame.width / 2;
    this.frame.scrollTop += svg.top + y - frame.top - frame.height / 2;
  }

  // The scale at which a part of the picture fills the frame.
  filling(part) {
    const {clientWidth, clientHeight} = this.frame;
    return Math.min(clientWidth / (part.right - part.x + 24), clientHeight / (part.bottom - part.y + 24));
  }

  fit(part) {
    this.zoom(Math.min(1, this.filling(part)));
    this.center(part);
  }

  show(element) {
    const part = this.box(element), link = element.closest("a");
    if (link !== null) link.focus({preventScroll: true});
    if (READABLE > this.scale) this.zoom(1);
    this.center(part);
  }

  // As many delegates, from the first on, as can be read together.
  open() {
    this.next = 0;
    const whole = this.box(this.svg), {clientWidth, clientHeight} = this.frame;
    if (clientWidth >= this.width) if (clientHeight >= this.height) return this.zoom(1);
    if (this.filling(whole) >= READABLE) return this.fit(whole);
    let seen = null;
    for (const delegate of this.delegates) {
      const b = this.box(delegate);
      const wider = seen === null ? b : {
        x: Math.min(seen.x, b.x), y: Math.min(seen.y, b.y),
        right: Math.max(seen.right, b.right), bottom: Math.max(seen.bottom, b.bottom),
      };
      if (seen !== null) if (READABLE > this.filling(wider)) break;
      seen = wider;
    }
    const first = this.svg.querySelector("rect");
    if (seen !== null) this.fit(seen);
    else if (first !== null) this.center(this.box(first));
  }

  step(by) {
    const many = this.delegates.length;
    this.next = (this.next + by + many) % many;
    const delegate = this.delegates[this.next];
    this.show(delegate);
  }
}

const viewers = new Map();

// The browser has scrolled to what a link names, and some unfolded it: do both for all, in the middle of a picture.
function reveal() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named === null) return;
  for (let e = named; e !== null; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
  const frame = named.closest(".picture");
  (frame || named).scrollIntoView({block: named.tagName === "TR" ? "center" : frame ? "nearest" : "start"});
  if (frame) view(frame).show(named);
}

function view(frame) {
  if (!viewers.has(frame)) viewers.set(frame, new Viewer(frame));
  return viewers.get(frame);
}

addEventListener("DOMContentLoaded", () => {
  for (const frame of document.querySelectorAll(".picture")) {
    const folded = frame.closest("details");
    if (folded === null) view(frame);
    else folded.addEventListener("toggle", () => view(frame), {once: true});
  }
  addEventListener("hashchange", reveal);
  addEventListener("click", (event) => {
    if (event.target.closest("a[href^='#']")) setTimeout(reveal, 0);  // also where the page is there already
  });
  reveal();
});
"""
