#!/usr/bin/env python3
"""What a timeline says of one step.

  summary.py TIMELINE [--last 20] [--step sample] [--kinds 2] [--order]

Reads what timeline.c wrote. A step ends with the kernel that --step names. Steps of the same kernels in the same order are
a kind; of the kinds that take the most time in all the last steps are averaged: time of a step, time until the next one
begins, kernels, time in which no kernel ran, and for each kernel how often it runs, how long, and how much later the step
ends for it (from the end of the kernel before it to its own end: kernels overlap, so durations add up to more than the
step). Behind them the calls of the driver between the end of a step and the first kernel of the next.
"""
import argparse
import bisect
import collections
import statistics


def read(path):
    kernels, copies, calls = [], [], []
    with open(path) as f:
        for line in f:
            kind, start, end, rest = line.split(maxsplit=3)
            start, end = int(start), int(end)
            if kind == "K":
                blocks, threads, shared, registers, node, name = rest.split(maxsplit=5)
                kernels.append((start, end, int(blocks), int(threads), int(shared), int(registers), name.strip()))
            elif kind == "C":
                copies.append((start, end, int(rest)))
            else:
                calls.append((start, end, rest.strip()))
    return sorted(kernels), sorted(copies), sorted(calls)


def steps_of(kernels, last):
    step, steps = [], []
    for kernel in kernels:
        step.append(kernel)
        if kernel[6] == last:
            steps.append(step)
            step = []
    return steps


def ends(step):
    return max(kernel[1] for kernel in step)


def show(steps, following, calls):
    times, idle, rows = [], [], collections.defaultdict(lambda: [0, 0.0, 0.0])
    for step in steps:
        before = step[0][0]
        times.append(ends(step) - before)
        gap = 0
        for start, end, blocks, threads, shared, registers, name in step:
            row = rows[name, blocks, threads, shared, registers]
            row[0] += 1
            row[1] += end - start
            row[2] += max(end - before, 0)
            gap += max(start - before, 0)
            before = max(before, end)
        idle.append(gap)
    n = len(steps)
    gaps = [following[step[0][0]][0][0] - ends(step) for step in steps if step[0][0] in following]
    gap = f"{statistics.median(gaps) / 1e3:.1f} us until the next, " if gaps else ""
    print(f"{len(steps[0])} kernels; {statistics.median(times) / 1e3:.1f} us a step, {gap}no kernel runs for "
          f"{statistics.median(idle) / 1e3:.1f} us")
    print(f"{'kernel':<22} {'blocks':>6} {'threads':>7} {'shared':>7} {'regs':>4} {'times':>5} {'us each':>8} {'later':>7} "
          f"{'sum':>8}")
    for key, (count, took, later) in sorted(rows.items(), key=lambda item: -item[1][2]):
        name, blocks, threads, shared, registers = key
        print(f"{name:<22} {blocks:>6} {threads:>7} {shared:>7} {registers:>4} {count / n:>5.0f} {took / count / 1e3:>8.2f} "
              f"{later / count / 1e3:>7.2f} {later / n / 1e3:>8.1f}")
    between = [step for step in steps if step[0][0] in following]
    if between:
        step = between[-1]
        end, begin = ends(step), following[step[0][0]][0][0]
        first = bisect.bisect_left(calls, (end - 50_000,))
        print("calls between the last of them and the next step, from its end on: us of start, us taken")
        for start, stop, name in calls[first:]:
            if start > begin:
                break
            print(f"  {(start - end) / 1e3:9.1f} {(stop - start) / 1e3:8.1f}  {name}")
        print(f"  {(begin - end) / 1e3:9.1f}           the next step's first kernel")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("timeline")
    parser.add_argument("--last", type=int, default=20)
    parser.add_argument("--step", default="sample")
    parser.add_argument("--kinds", type=int, default=2)
    parser.add_argument("--order", action="store_true", help="also print the kernels of the last step in their order")
    args = parser.parse_args()
    kernels, _, calls = read(args.timeline)
    steps = steps_of(kernels, args.step)
    following = {step[0][0]: other for step, other in zip(steps, steps[1:])}
    kinds = collections.defaultdict(list)
    for step in steps:
        kinds[tuple((kernel[6], kernel[2]) for kernel in step)].append(step)
    largest = sorted(kinds.values(), key=lambda steps: -sum(ends(step) - step[0][0] for step in steps if len(steps) > 2))
    for chosen in largest[:args.kinds]:
        print(f"\n{len(chosen)} steps of ", end="")
        chosen = chosen[-args.last:]
        show(chosen, following, calls)
        if not args.order:
            continue
        last = chosen[-1]
        before = last[0][0]
        for start, end, blocks, threads, shared, registers, name in last:
            print(f"{(start - last[0][0]) / 1e3:9.2f} {(end - start) / 1e3:8.2f} {(end - before) / 1e3:8.2f}  "
                  f"{name} [{blocks} x {threads}]")
            before = max(before, end)


if __name__ == "__main__":
    main()
