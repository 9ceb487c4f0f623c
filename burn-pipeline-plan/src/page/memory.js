// The memory of each rank over time, and the cap.

const drawMemory = (timeline) => {
    const ranks = timeline.ranks, row = 46, height = TOP + ranks.length * row + 4;
    const peaks = ranks.map((rank) => rank.memory.reduce((most, [, held]) => Math.max(most, held), rank.constant));
    const most = Math.max(...peaks, data.cap || 0) || 1;
    const cap = data.cap ? `, under the cap of ${size(data.cap)}` : "";
    element(byId("curves"), "h3", `${timeline.name}: ${data.unit} of each rank${cap}`);
    if (!data.activations) {
        element(byId("curves"), "p", "Without activations: the costs do not give their bytes.", { class: "note" });
    }
    const made = canvas(byId("curves"), height, `Memory of ${timeline.name} over time`, (context, width) => {
        axis(context, width, height);
        rankNames(context, ranks.length, row);
        clip(context, width, height);
        ranks.forEach((rank, number) => {
            const bottom = TOP + (number + 1) * row - 4, y = (held) => bottom - held / most * (row - 8);
            context.fillStyle = style("--accent");
            context.globalAlpha = .55;
            context.beginPath();
            const points = rank.memory;
            const edge = Math.max(x(0, width), LEFT), end = Math.min(x(timeline.end, width), width);
            let at = first(points, (point) => point[0] > view.from), held = at > 0 ? points[at - 1][1] : rank.constant;
            context.moveTo(edge, bottom);
            context.lineTo(edge, y(held));
            while (at < points.length && points[at][0] <= view.to) {
                // A pixel shows the most memory held within it.
                const pixel = Math.floor(x(points[at][0], width));
                let top = held;
                context.lineTo(pixel, y(held));
                for (; at < points.length && x(points[at][0], width) < pixel + 1; at++) {
                    held = points[at][1];
                    top = Math.max(top, held);
                }
                context.lineTo(pixel, y(top));
                context.lineTo(pixel + 1, y(top));
                context.lineTo(pixel + 1, y(held));
            }
            context.lineTo(end, y(held));
            context.lineTo(end, bottom);
            context.fill();
            context.globalAlpha = 1;
            if (data.cap) {
                context.strokeStyle = "#d55e00";
                context.setLineDash([5, 3]);
                context.beginPath();
                context.moveTo(LEFT, y(data.cap));
                context.lineTo(width, y(data.cap));
                context.stroke();
                context.setLineDash([]);
            }
        });
        context.restore();
    });
    made.addEventListener("pointermove", (event) => {
        const box = made.getBoundingClientRect(), at = time(made, event);
        const number = Math.floor((event.clientY - box.top - TOP) / row), rank = ranks[number];
        if (!rank || event.clientX - box.left < LEFT) return say("");
        const place = first(rank.memory, (point) => point[0] > at) - 1;
        const held = size(place < 0 ? rank.constant : rank.memory[place][1]);
        say(`rank ${number} holds ${held} at ${moment(at)}`, event.clientX, event.clientY);
    });
    made.addEventListener("pointerleave", () => say(""));
    made.addEventListener("keydown", (event) => { if (keys(event.key)) event.preventDefault(); });
    const names = ["rank", "held throughout", "peak", ...(data.cap ? ["of the cap"] : [])];
    const share = (peak) => data.cap ? [percent(peak, data.cap)] : [];
    table(byId("curves"), `Peaks of ${timeline.name}`, names,
        ranks.map((rank, number) => [number, size(rank.constant), size(peaks[number]), ...share(peaks[number])]));
};
