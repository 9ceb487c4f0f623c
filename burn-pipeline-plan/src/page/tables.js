// The tables of idle time and of choices, and the picture of choices.

const table = (parent, caption, names, rows, { text = [], front = () => false } = {}) => {
    const region = { class: "wide", tabindex: 0, role: "region", "aria-label": caption };
    const made = element(element(parent, "div", undefined, region), "table");
    element(made, "caption", caption);
    const cells = (row, kind, values) => values.forEach((value, at) => element(row, kind, value, {
        ...(text.includes(at) && { class: "text" }),
        ...(kind === "th" && { scope: "col" }),
    }));
    cells(element(element(made, "thead"), "tr"), "th", names);
    const body = element(made, "tbody");
    rows.forEach((row, at) => cells(element(body, "tr", undefined, front(at) ? { class: "front" } : {}), "td", row));
};

const drawCauses = (timeline) => {
    const occurs = (cause) => timeline.ranks.some((rank) => rank.idle.some((idle) => idle[2] === cause));
    const used = data.causes.map((name, cause) => ({ name, cause })).filter(({ cause }) => occurs(cause));
    const rows = timeline.ranks.map((rank, number) => {
        const of = (cause) => rank.idle.reduce((sum, idle) => sum + (idle[2] === cause ? idle[1] - idle[0] : 0), 0);
        const idle = used.map(({ cause }) => seconds(of(cause)));
        return [number, seconds(rank.busy), percent(rank.busy, timeline.end), ...idle, seconds(rank.exposed)];
    });
    const idle = used.map(({ name }) => `idle: ${name}`);
    table(byId("causes"), timeline.name, ["rank", "computes", "share", ...idle, "exposed communication"], rows);
};

const drawChoices = ({ unit, usable, dropped }) => {
    const held = (value) => size(value, unit);
    const parent = byId("picture");
    const [height, edge] = [320, 56], width = Math.min(760, Math.max(parent.clientWidth, 300));
    if (usable.length) {
        const namespace = "http://www.w3.org/2000/svg";
        const draw = (parent, name, attributes, text) => {
            const made = parent.appendChild(document.createElementNS(namespace, name));
            Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
            if (text !== undefined) made.textContent = text;
            return made;
        };
        const range = (values) => {
            const [low, high] = [Math.min(...values), Math.max(...values)], room = (high - low) * .06 || high * .1 || 1;
            return [low - room, high + room];
        };
        const times = usable.map((choice) => choice.seconds), peaks = usable.map((choice) => choice.peak);
        const [left, right] = range(times), [low, high] = range(peaks);
        const across = (value) => edge + (value - left) / (right - left) * (width - edge - 16);
        const up = (value) => height - 40 - (value - low) / (high - low) * (height - 60);
        const label = "Seconds of a step against the peak of a rank, for every choice; the table below has the numbers";
        const picture = draw(parent, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
        draw(picture, "path", { class: "axis", fill: "none", d: `M${edge} 16V${height - 40}H${width - 16}` });
        draw(picture, "text", { x: width - 16, y: height - 8, "text-anchor": "end" },
            `a step, ${seconds(Math.min(...times))} to ${seconds(Math.max(...times))}`);
        draw(picture, "text", { x: 8, y: 12 },
            `peak of a rank, ${held(Math.min(...peaks))} to ${held(Math.max(...peaks))}`);
        const front = usable.filter((choice) => choice.pareto).sort((a, b) => a.seconds - b.seconds);
        const points = front.map((choice) => `${across(choice.seconds)},${up(choice.peak)}`).join(" ");
        draw(picture, "polyline", { class: "front-line", points });
        for (const choice of usable) {
            const [kind, r] = choice.pareto ? ["point front", 6] : ["point", 4];
            const point = draw(picture, "circle", { class: kind, cx: across(choice.seconds), cy: up(choice.peak), r });
            const text = `${choice.name}\n${seconds(choice.seconds)}, ${held(choice.peak)}`;
            draw(point, "title", {}, text);
            point.addEventListener("pointermove", (event) => say(text, event.clientX, event.clientY));
            point.addEventListener("pointerleave", () => say(""));
        }
    }
    table(byId("table"), "Usable choices, fastest first (bold: no other is both faster and smaller)",
        ["choice", "a step", "peak of a rank"],
        usable.map((choice) => [choice.name, seconds(choice.seconds), held(choice.peak)]),
        { text: [0], front: (at) => usable[at].pareto });
    if (dropped.length) {
        const details = element(byId("table"), "details");
        element(details, "summary", `${dropped.length} unusable, and why`);
        table(details, "Left out", ["choice", "reason"], dropped, { text: [0, 1] });
    }
};
