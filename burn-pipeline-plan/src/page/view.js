// Shared by all drawings: the visible part of the time axis, which moves them together, and the format of numbers.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const moves = (kind) => data.kinds[kind].moves; // It moves data instead of computing.
const CAUSES = ["#9aa0aa", "#56b4e9", "#e69f00", "#009e73", "#8a6fd1", "#cc3377"];
const ROW = 34, LANE = 22, TOP = 20, LEFT = 46;
const view = { from: 0, to: data.end || 1 };
const drawings = [];

const element = (parent, name, text, attributes = {}) => {
    const made = parent.appendChild(document.createElement(name));
    if (text !== undefined) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
};
const scaled = (value, units, digits = 4) => {
    const [unit, factor] = units.find(([, factor]) => Math.abs(value) >= factor) || units[units.length - 1];
    return `${Number((value / factor).toPrecision(digits))} ${unit}`;
};
// JSON has no infinity and no NaN; they are written as null.
const NOT_KNOWN = "not known";
const SECONDS = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];
const BYTES = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]];
const seconds = (value, digits) =>
    value === null ? NOT_KNOWN : value === 0 ? "0 s" : scaled(value, SECONDS, digits);
/// A moment has more digits than a duration, to tell apart actions of 1 ms in a step of 1,000 s.
const moment = (value) => seconds(value, 7);
const bytes = (value) => value === null ? NOT_KNOWN : value === 0 ? "0 B" : scaled(value, BYTES);
const size = (value, unit = data.unit) =>
    unit === "bytes" || value === null ? bytes(value) : `${Number(value.toPrecision(4))} ${unit}`;
const percent = (part, whole) => `${(whole > 0 ? 100 * part / whole : 0).toFixed(1)} %`;
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/// The first index of a sorted list for which `holds` is true.
const first = (list, holds) => {
    let [low, high] = [0, list.length];
    while (low < high) {
        const middle = (low + high) >> 1;
        if (holds(list[middle])) high = middle; else low = middle + 1;
    }
    return low;
};

// A chunk's colour is its kind's, mixed with white.
const shades = data.kinds.map(({ colour }) => [0, 1, 2, 3].map((chunk) => {
    const mix = (at) => Math.round(parseInt(colour.slice(at, at + 2), 16) * (1 - .22 * chunk) + 255 * .22 * chunk);
    const [red, green, blue] = [mix(1), mix(3), mix(5)];
    return { fill: `rgb(${red} ${green} ${blue})`, text: .3 * red + .59 * green + .11 * blue > 140 ? "#000" : "#fff" };
}));

const redraw = (() => {
    let waiting = false;
    return () => {
        if (waiting) return;
        waiting = true;
        requestAnimationFrame(() => { waiting = false; drawings.forEach((draw) => draw()); });
    };
})();
const show = (from, to) => {
    const least = (data.end || 1) * 1e-6, width = Math.min(Math.max(to - from, least), data.end || 1);
    view.from = Math.min(Math.max(from, 0), (data.end || 1) - width);
    view.to = view.from + width;
    redraw();
};
const zoom = (factor, around = (view.from + view.to) / 2) =>
    show(around - (around - view.from) * factor, around + (view.to - around) * factor);

/// A canvas at the screen's size and pixel density; `paint` gets its context and width.
const canvas = (parent, height, label, paint) => {
    const made = element(parent, "canvas", undefined,
        { tabindex: 0, role: "application", "aria-label": label, "aria-describedby": "keys" });
    made.style.height = `${height}px`;
    const draw = () => {
        const ratio = window.devicePixelRatio || 1, width = made.clientWidth;
        if (made.width !== Math.round(width * ratio)) made.width = Math.round(width * ratio);
        if (made.height !== Math.round(height * ratio)) made.height = Math.round(height * ratio);
        const context = made.getContext("2d");
        context.setTransform(ratio, 0, 0, ratio, 0, 0);
        context.clearRect(0, 0, width, height);
        context.font = "12px system-ui, sans-serif";
        context.textBaseline = "middle";
        paint(context, width);
    };
    drawings.push(draw);
    new ResizeObserver(redraw).observe(made);
    move(made);
    return made;
};
const x = (time, width) => LEFT + (time - view.from) / (view.to - view.from) * (width - LEFT);
const time = (made, event) => {
    const box = made.getBoundingClientRect();
    return view.from + (event.clientX - box.left - LEFT) / (box.width - LEFT) * (view.to - view.from);
};

/// Handles dragging, pinching and the wheel.
const move = (made) => {
    const pointers = new Map();
    made.addEventListener("wheel", (event) => {
        if (event.ctrlKey || event.metaKey) {
            event.preventDefault();
            zoom(Math.exp(event.deltaY * .004), time(made, event));
        } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
            event.preventDefault();
            const shift = event.deltaX / (made.clientWidth - LEFT) * (view.to - view.from);
            show(view.from + shift, view.to + shift);
        }
    }, { passive: false });
    made.addEventListener("pointerdown", (event) => {
        pointers.set(event.pointerId, event.clientX);
        try { made.setPointerCapture(event.pointerId); } catch { /* The pointer is gone already. */ }
    });
    const end = (event) => pointers.delete(event.pointerId);
    made.addEventListener("pointerup", end);
    made.addEventListener("pointercancel", end);
    made.addEventListener("pointermove", (event) => {
        if (!pointers.has(event.pointerId)) return;
        const before = [...pointers.values()];
        pointers.set(event.pointerId, event.clientX);
        const after = [...pointers.values()];
        const span = view.to - view.from, scale = span / (made.clientWidth - LEFT);
        if (after.length === 1) {
            const shift = (before[0] - after[0]) * scale;
            show(view.from + shift, view.to + shift);
        } else if (after.length === 2) {
            const apart = (pair) => Math.max(Math.abs(pair[0] - pair[1]), 8);
            const middle = (after[0] + after[1]) / 2 - made.getBoundingClientRect().left - LEFT;
            zoom(apart(before) / apart(after), view.from + middle * scale);
        }
    });
    made.addEventListener("dblclick", (event) => zoom(.4, time(made, event)));
};

/// Handles the keys that zoom; returns false for other keys.
const keys = (key) => {
    const zooms = {
        "+": () => zoom(.6), "=": () => zoom(.6), "-": () => zoom(1 / .6), "0": () => show(0, data.end || 1),
    };
    if (zooms[key]) zooms[key]();
    return Boolean(zooms[key]);
};

const axis = (context, width, height) => {
    const span = view.to - view.from, about = span / Math.max(2, (width - LEFT) / 110);
    const power = 10 ** Math.floor(Math.log10(about));
    const tick = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= about);
    context.strokeStyle = style("--line");
    context.fillStyle = style("--soft");
    context.textAlign = "center";
    for (let at = Math.ceil(view.from / tick) * tick; at <= view.to + tick * 1e-6; at += tick) {
        const place = x(at, width);
        context.beginPath();
        context.moveTo(place, TOP - 4);
        context.lineTo(place, height);
        context.stroke();
        const label = seconds(Math.abs(at) < tick / 2 ? 0 : Number(at.toPrecision(8)));
        if (place > LEFT + 16 && place < width - 16) context.fillText(label, place, 8);
    }
};
const rankNames = (context, count, row) => {
    context.fillStyle = style("--text");
    context.textAlign = "left";
    for (let rank = 0; rank < count; rank++) context.fillText(String(rank), 6, TOP + rank * row + LANE / 2);
};
const clip = (context, width, height) => {
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height);
    context.clip();
};

/// Paints the events in view; of events narrower than a pixel, one for each pixel.
const visible = (lane, width, paint) => {
    let last = -1;
    const from = first(lane.events, (event) => event[0] >= view.from - lane.longest);
    for (let at = from; at < lane.events.length && lane.events[at][0] <= view.to; at++) {
        const event = lane.events[at];
        if (event[1] < view.from) continue;
        const start = x(event[0], width), end = Math.max(x(event[1], width), start + 1);
        if (end - start <= 1.5 && Math.floor(start) === last) continue;
        last = Math.floor(start);
        paint(event, start, end);
    }
};
const lane = (events) => (
    { events, longest: events.reduce((longest, event) => Math.max(longest, event[1] - event[0]), 0) }
);
