"""Prints the figures of a big fleet."""

from __future__ import annotations

import math
from typing import Any


def say(found: dict[str, Any]) -> None:
    size = found["size"]
    print(
        f"{size['slots']:,} slots · {size['models']} models, {size['models_per_pool']} to a pool ·"
        f" {size['tenants']:,} tenants · {size['waiting']:,} waiting · {size['fleets']} fleet(s) ·"
        f" jobs of {size['mean_seconds']:g} s in the mean, {size['swap_seconds']:g} s for another model ·"
        f" {size['seconds'] - size['warm_up_seconds']:g} virtual seconds after {size['warm_up_seconds']:g}"
    )
    if "scripts" in found:
        _scripts(found["scripts"])
    if "services" in found:
        _services(found["services"])


def _scripts(one: dict[str, Any]) -> None:
    print(
        f"\nThe scripts alone, one client: {one['jobs_per_second']:,.0f} jobs/s of real time"
        f" ({one['jobs']:,} jobs) · {one['push_per_second']:,.0f} tickets/s pushed ·"
        f" Redis {one['redis_us_per_job']:.0f} µs, {one['redis_cpu_us_per_job']:.0f} µs of its processor,"
        f" {one['script_calls_per_job']:.1f} scripts and {one['commands_per_job']:.0f} commands per job ·"
        f" {one['bytes_per_ticket']:.0f} bytes per ticket"
    )
    _by_script(one["script_costs"])


def _services(one: dict[str, Any]) -> None:
    submit, job, redis = one["submit"], one["per_job"], one["redis"]
    print(
        f"\nWith services and {one['database']}, one process: {one['jobs_per_second']:,.0f} jobs/s of"
        f" real time ({one['jobs']:,} jobs in {one['wall_seconds']:.0f} s), {one['submitted']:,} submitted"
        f" meanwhile\n  the fleet: {one['virtual_jobs_per_hour']:,.0f} jobs an hour · slots busy"
        f" {one['slots_busy']:.2%}, of it loading models {one['slots_swapping']:.2%} ·"
        f" {one['swaps_per_start']:.1%} of the starts swap · {one['doubled']} slots used twice"
    )
    print(f"\n  {'wait of':<16} {'starts':>9} {'p50':>9} {'p99':>9} s")
    for name, wait in one["waits"].items():
        print(f"  {name:<16} {wait['starts']:>9,} {wait['p50']:>9.2f} {wait['p99']:>9.2f}")
    print(
        f"\n  per job: {one['cpu_ms_per_job']:.2f} ms of this process"
        f" + {job['database_cpu_ms']:.2f} ms of the database server"
        f" + {redis['cpu_us_per_job'] / 1000:.2f} ms of Redis"
        f"\n  database: {job['transactions']:.2f} transactions, {job['statements']:.1f} statements,"
        f" {job['database_wall_ms']:.2f} ms waited, {job['wal_bytes']:,.0f} bytes of log,"
        f" {job['connections_given_back']:.2f} connections given back"
        f" ({job['connect_ms']:.2f} ms each) · {job['wakes']:.2f} wakes"
        f"\n  Redis: {redis['us_per_job']:.0f} µs in {redis['script_calls_per_job']:.2f} scripts,"
        f" {redis['commands_per_job']:.0f} commands · {redis['bytes'] / 1e6:,.1f} MB,"
        f" {one['redis_bytes_per_waiting']:.0f} bytes per waiting job"
        f"\n  a submit in batches: {submit['cpu_ms']:.3f} ms of this process"
        f" + {submit['database_cpu_ms']:.3f} ms of the database server,"
        f" {submit['wal_bytes']:,.0f} bytes of log"
    )
    _by_script(redis["script_costs"])
    print(
        f"\n  {'of this process':<24} {'times':>9} {'ms each':>9} {'ms per job':>11} {'share of a core':>16}"
    )
    for name, section in one["sections"].items():
        print(
            f"  {name:<24} {section['times']:>9,} {section['cpu_ms_each']:>9.3f}"
            f" {section['cpu_ms_per_job']:>11.3f} {section['wall_share_of_virtual']:>15.1%}"
        )
    rest = one["cpu_ms_per_job"] - sum(part["cpu_ms_per_job"] for part in one["sections"].values())
    print(f"  {'claims, runs, the clock':<24} {'':>9} {'':>9} {rest:>11.3f}")
    _sizes(one)
    if "rebuild_seconds" in one:
        print(f"\n  the index made anew after a flush: {one['rebuild_seconds']:.1f} s of work")


def _sizes(one: dict[str, Any]) -> None:
    jobs = max(1, one["rows"]["jobs"])
    print(f"\n  {'table':<24} {'rows':>10} {'MB':>9} {'indexes':>9} {'bytes per job':>14}")
    for name, (rows, table, indexes) in one["sizes"].items():
        if table + indexes > 100_000:
            print(
                f"  {name:<24} {rows:>10,} {table / 1e6:>9.1f} {indexes / 1e6:>9.1f}"
                f" {(table + indexes) / jobs:>14,.0f}"
            )
    waiting = sum(table + indexes for _, table, indexes in one["waiting_sizes"].values())
    print(f"  a job that waits: {waiting / max(1, one['submit']['jobs']):,.0f} bytes")


def _by_script(scripts: dict[str, dict[str, float]]) -> None:
    shown = [
        f"{name} {one['calls_per_job']:.2f} × {one['us']:.0f} µs"
        for name, one in scripts.items()
        if one["calls_per_job"] >= 0.005 and not math.isnan(one["us"])
    ]
    print("  scripts per job: " + " · ".join(shown))
