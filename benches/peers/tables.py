"""The tables: from the lines that were measured to ratios."""

import statistics

from contestants import Case, contestants


class Measured:
    """What the lines of a result say of (contestant, bytes); one with a wrong element has no figure there."""

    def __init__(self, result):
        self.runs, self.wrong = {}, set()
        for line in result["lines"]:
            key = line["peer"], line["bytes"]
            self.runs.setdefault(key, {})[line["rep"]] = line["median_us"]
            if line.get("wrong", 0) != 0:
                self.wrong.add(key)
        self.medians = {key: statistics.median(of.values()) for key, of in self.runs.items() if key not in self.wrong}

    def best(self, contestants, size):
        measured = [c for c in contestants if (c.name, size) in self.medians]
        return min(measured, key=lambda c: self.medians[c.name, size], default=None)

    def ratio(self, over, under, size):
        """Median of the ratios within each repetition: a machine that changes its pace in between changes neither."""
        if over is None or not all((c.name, size) in self.medians for c in (over, under)):
            return None
        over, under = (self.runs[c.name, size] for c in (over, under))
        common = over.keys() & under.keys()
        return statistics.median(over[rep] / under[rep] for rep in common) if common else None


def table(result, brief):
    case = Case(**result["case"])
    measured = Measured(result)
    sizes = sorted({line["bytes"] for line in result["lines"] if line["peer"] not in ("wake", "ping-pong")})
    rows = [dict(row(case, size, measured, result, brief)) for size in sizes]
    header = list(rows[0]) if rows else ["size"]
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *(list(row.values()) for row in rows)]
    text = [f"### {case.title()}", "", *("| " + " | ".join(line) + " |" for line in lines), ""]
    return "\n".join(text + notes(result, measured))


def row(case, size, measured, result, brief):
    """(heading, cell) after (heading, cell); brief leaves out what only explains a ratio."""
    everyone = contestants(case)
    peers = [c for c in everyone if c.kind == "peer"]
    floor = [c for c in everyone if c.kind == "limit" and c.name.startswith(("stream", "direct"))]
    best, bound = measured.best((peer for peer in peers if peer.counts), size), measured.best(floor, size)
    yield "size", size_text(size)
    if not brief:
        yield from ((peer.title, cell(peer, size, measured, result)) for peer in peers)
    yield "best peer", f"{best.title} {number(measured.medians[best.name, size])}" if best else "–"
    for ours in (c for c in everyone if c.needs == "hcomm"):
        yield ours.title, cell(ours, size, measured, result)
        if ours.kind == "hcomm":
            yield "best ÷ hcomm", times(measured.ratio(best, ours, size))
            burn = measured.best((peer for peer in peers if peer.needs == "burn"), size)
            if burn:
                yield "burn ÷ hcomm", times(measured.ratio(burn, ours, size))
        if floor and ours.kind == "hcomm" and not brief:
            limit = "two-way stream" if case.link == "tcp" else "direct, 2 threads or processes"
            yield limit, number(measured.medians[bound.name, size]) if bound else "–"
        if floor:
            limit = "a two-way stream" if case.link == "tcp" else "a direct all_reduce"
            which = {"prepared": ", prepared", "copied": ", from a Vec"}.get(ours.kind, "")
            yield f"share of {limit}{which}", share(measured.ratio(bound, ours, size))
            pull = next((c for c in everyone if c.name == "pull-processes"), None)
            if pull:
                yield f"share where each writes its own{which}", share(measured.ratio(pull, ours, size))
        if ours.kind == "copied":
            yield "best ÷ hcomm, from a Vec", times(measured.ratio(best, ours, size))


def times(ratio):
    return f"{ratio:.2f}×" if ratio else "–"


def share(ratio):
    return f"{100 * ratio:.0f} %" if ratio else "–"


def cell(contestant, size, measured, result):
    if (contestant.name, size) in measured.wrong:
        return "wrong"
    if (contestant.name, size) in measured.medians:
        return number(measured.medians[contestant.name, size])
    if contestant.title in result["absent"]:
        return "absent"
    failed = any(problem["peer"] == contestant.name for problem in result["problems"])
    return "failed" if failed else "–"


def notes(result, measured):
    text = ["µs, at rank 0, median over repetitions of the medians of the runs; of ratios, of the repetitions' own."]
    if result["case"]["link"] == "memory":
        text.append("† one addition and no copy per rank: not an in-place all_reduce, so never the best peer.")
    for name, label in [("ping-pong", "TCP round trip of 8 B, spinning"), ("wake", "waking another core, one way")]:
        if (name, 8) in measured.medians:
            text.append(f"{label}: {number(measured.medians[name, 8])} µs.")
    text += [f"Absent: {name}: {reason}." for name, reason in sorted(result["absent"].items())]
    text += [f"Wrong result: {peer} at {size_text(size)}." for peer, size in sorted(measured.wrong)]
    seen = sorted({(problem["peer"], problem["what"]) for problem in result["problems"]})
    text += [f"Failed: {peer}: {what}" for peer, what in seen]
    return [line + "  " for line in text] + [""]


def number(value):
    if value >= 10_000:
        return f"{float(f'{value:.3g}'):,.0f}".replace(",", " ")
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}".replace(",", " ")


def size_text(size):
    for unit, factor in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]:
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def document(report, brief):
    about = report["machine"]
    head = (
        f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']}, default congestion control "
        f"{about['congestion']}; {report['reps']} interleaved repetitions of {report['seconds']} s a point."
    )
    text = [head, "", *(table(result, brief) for result in report["results"])]
    return "\n".join(text + [f"Skipped: {reason}." for reason in report["skipped"]])
