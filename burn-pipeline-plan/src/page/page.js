// Builds the page from the data that `data.rs` wrote.

document.title = data.title;
byId("title").textContent = data.title;
byId("summary").textContent = data.timelines.map((timeline) => {
    const busy = timeline.ranks.reduce((sum, rank) => sum + rank.busy, 0) / (timeline.ranks.length || 1);
    const idle = percent(timeline.end - busy, timeline.end);
    return `${timeline.name}: ${seconds(timeline.end)} a step, ${idle} of it not computing`;
}).join("; ");
if (data.timelines.length) {
    byId("timelines").hidden = byId("idle").hidden = false;
    const ranks = data.timelines.flatMap((timeline) => timeline.ranks);
    const used = new Set(ranks.flatMap((rank) => rank.events.map((event) => event[2])));
    const entry = (colour, words, alpha) => {
        const box = Object.assign(document.createElement("i"), { style: `background:${colour};opacity:${alpha}` });
        element(byId("legend"), "li").append(box, words);
    };
    data.kinds.forEach(({ colour, words }, kind) => used.has(kind) && entry(colour, words, 1));
    const idle = new Set(ranks.flatMap((rank) => rank.idle.map((period) => period[2])));
    data.causes.forEach((name, cause) => idle.has(cause) && entry(CAUSES[cause], `idle: ${name}`, .4));
    data.timelines.forEach(drawTimeline);
    data.timelines.forEach(drawCauses);
    const remembered = data.timelines.filter((timeline) => timeline.ranks.some((rank) => rank.memory.length));
    byId("memory").hidden = remembered.length === 0;
    remembered.forEach(drawMemory);
    byId("in").addEventListener("click", () => zoom(.6));
    byId("out").addEventListener("click", () => zoom(1 / .6));
    byId("all").addEventListener("click", () => show(0, data.end || 1));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
if (data.choices) {
    byId("choices").hidden = false;
    drawChoices(data.choices);
}
