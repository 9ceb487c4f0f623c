// A timeline: one row a rank, with computations above transfers, and idle time behind them in the colour of its cause.

const waited = (rank, event) => {
    const near = (data.end || 1) * 1e-9, parts = [];
    let until = event[0];
    for (let at = first(rank.idle, (idle) => idle[1] > event[0] + near) - 1; at >= 0; at--) {
        const [start, end, cause] = rank.idle[at];
        if (Math.abs(end - until) > near) break;
        parts.unshift(`${seconds(end - start)} ${data.causes[cause]}`);
        until = start;
    }
    return parts;
};
const describe = (timeline, number, event) => {
    const rank = timeline.ranks[number], [start, end, kind, , text, moved, exposed] = event;
    const lines = [
        `${text}: ${data.kinds[kind].words}`,
        `rank ${number}, ${moment(start)} to ${moment(end)} (${seconds(end - start)})`,
    ];
    const parts = !moves(kind) ? waited(rank, event) : [];
    if (parts.length) lines.push(`waited before: ${parts.join(", ")}`);
    if (moved) lines.push(bytes(moved));
    if (exposed) lines.push(`kept the rank waiting for ${seconds(exposed)}`);
    const held = first(rank.memory, (point) => point[0] > end) - 1;
    if (held >= 0) lines.push(`the rank holds ${size(rank.memory[held][1])} after it`);
    return lines.join("\n");
};

const tip = byId("tip");
const say = (text, left, top) => {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = `${Math.max(4, Math.min(left + 14, innerWidth - tip.offsetWidth - 6))}px`;
    const above = top + tip.offsetHeight + 24 > innerHeight;
    tip.style.top = `${above ? Math.max(4, top - tip.offsetHeight - 12) : top + 16}px`;
};

const drawTimeline = (timeline) => {
    const ranks = timeline.ranks, height = TOP + ranks.length * ROW + 4;
    for (const rank of ranks) {
        rank.computing = lane(rank.events.filter((event) => !moves(event[2])));
        rank.moving = lane(rank.events.filter((event) => moves(event[2])));
    }
    const figure = element(byId("tracks"), "figure", undefined, { style: "margin: 0" });
    element(figure, "h3", `${timeline.name}: ${seconds(timeline.end)}`);
    const chosen = { rank: 0, event: null };
    const label = `Timeline of ${timeline.name}, ${ranks.length} ranks, ${seconds(timeline.end)}`;
    const made = canvas(figure, height, label, (context, width) => {
        axis(context, width, height);
        rankNames(context, ranks.length, ROW);
        clip(context, width, height);
        ranks.forEach((rank, number) => {
            const top = TOP + number * ROW;
            context.globalAlpha = .22;
            visible(rank.idleLane ||= lane(rank.idle), width, (idle, start, end) => {
                context.fillStyle = CAUSES[idle[2]];
                context.fillRect(start, top, end - start, LANE);
            });
            context.globalAlpha = 1;
            visible(rank.computing, width, (event, start, end) => {
                const shade = shades[event[2]][Math.min(event[3], 3)];
                context.fillStyle = shade.fill;
                context.fillRect(start, top, Math.max(end - start - (end - start > 4 ? 1 : 0), 1), LANE);
                if (end - start > 7 * event[4].length + 4) {
                    context.fillStyle = shade.text;
                    context.textAlign = "center";
                    context.fillText(event[4], (Math.max(start, LEFT) + Math.min(end, width)) / 2, top + LANE / 2);
                }
            });
            visible(rank.moving, width, (event, start, end) => {
                context.fillStyle = shades[event[2]][0].fill;
                context.fillRect(start, top + LANE + 1, end - start, 6);
            });
        });
        if (chosen.event) {
            const [start, end, kind] = chosen.event;
            const [below, tall] = !moves(kind) ? [0, LANE] : [LANE + 1, 6];
            const top = TOP + chosen.rank * ROW + below;
            context.strokeStyle = style("--text");
            context.lineWidth = 2;
            context.strokeRect(x(start, width), top, Math.max(x(end, width) - x(start, width), 2), tall);
            context.lineWidth = 1;
        }
        context.restore();
    });
    made.addEventListener("pointermove", (event) => {
        const box = made.getBoundingClientRect(), at = time(made, event);
        const below = event.clientY - box.top - TOP, number = Math.floor(below / ROW), rank = ranks[number];
        if (!rank || event.clientX - box.left < LEFT) return say("");
        const inLane = below - number * ROW <= LANE ? rank.computing : rank.moving;
        const slack = (view.to - view.from) / box.width;
        const earliest = at - inLane.longest - slack;
        let found = null, place = first(inLane.events, (e) => e[0] > at + slack) - 1;
        for (; place >= 0 && inLane.events[place][0] >= earliest; place--) {
            if (inLane.events[place][1] >= at - slack) { found = inLane.events[place]; break; }
        }
        const idle = rank.idle.find(([start, end]) => start <= at && at < end);
        const text = found ? describe(timeline, number, found)
            : idle && inLane === rank.computing
                ? `rank ${number} idles for ${seconds(idle[1] - idle[0])}: ${data.causes[idle[2]]}` : "";
        say(text, event.clientX, event.clientY);
    });
    made.addEventListener("pointerleave", () => say(""));
    made.addEventListener("blur", () => say(""));
    made.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        const events = () => ranks[chosen.rank].computing.events;
        const at = chosen.event ? first(events(), (e) => e[0] >= chosen.event[0]) : -1;
        const go = {
            ArrowRight: () => events()[Math.min(at + 1, events().length - 1)],
            ArrowLeft: () => events()[Math.max(at - 1, 0)],
            Home: () => events()[0],
            End: () => events()[events().length - 1],
            ArrowDown: () => sameTime(1),
            ArrowUp: () => sameTime(-1),
        }[event.key];
        const sameTime = (step) => {
            chosen.rank = Math.min(Math.max(chosen.rank + step, 0), ranks.length - 1);
            const here = chosen.event ? chosen.event[0] : 0;
            return events()[Math.min(first(events(), (e) => e[1] > here), events().length - 1)];
        };
        if (!go && !keys(event.key)) return;
        event.preventDefault();
        const next = go && go();
        if (!next) return;
        chosen.event = next;
        const width = view.to - view.from;
        if (next[0] < view.from || next[1] > view.to) {
            show((next[0] + next[1] - width) / 2, (next[0] + next[1] + width) / 2);
        }
        redraw();
        const text = describe(timeline, chosen.rank, next), box = made.getBoundingClientRect();
        byId("live").textContent = text;
        const left = box.left + Math.min(Math.max(x(next[0], box.width), LEFT), box.width);
        say(text, left, box.top + TOP + chosen.rank * ROW + LANE);
    });
};
