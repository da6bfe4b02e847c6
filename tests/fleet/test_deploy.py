"""`spectr deploy` on its own Ray cluster, with real processes and real signals."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fleet.processes import Received, children, ready, receive, receive_all, texts
from tests.forked import Forked, free_port, run_spectr

from spectr.fleet.plan import read_plan
from spectr.fleet.replicas import Call

pytestmark = pytest.mark.scale
STREAMS = range(16)
SHORT = 60


def write_plan(path: Path, folder: str, port: int, **more: Any) -> None:
    plan = {"model": folder, "served_name": "tiny", "drafter": "lookup", "dtype": "float64", "cpus": 0.1, "port": port,
            "drain_time": 5.0, **more}  # fmt: skip
    lines = [f"{name}: {value}" for name, value in plan.items()]
    path.write_text("\n".join([*lines, 'environment: {OMP_NUM_THREADS: "1"}', ""]))


def times_ready(said: str) -> int:
    return sum("serving tiny" in line for line in said.splitlines())


def changed(fleet: Forked) -> None:
    """Let a fleet reload its plan, and wait until it is deployed."""
    before = times_ready(fleet.said)
    os.kill(fleet.pid, signal.SIGHUP)
    fleet.wait_for(lambda said: times_ready(said) > before)


def replicas(fleet: Forked) -> list[int]:
    return children(fleet.pid, "ServeReplica:spectr:Model")


async def under_load(url: str, meanwhile: Any) -> list[tuple[int, Received]]:
    """Keep two clients requesting texts while `meanwhile` runs, and return what they received."""
    received: list[tuple[int, Received]] = []
    work = asyncio.ensure_future(asyncio.to_thread(meanwhile))

    async def client(first: int) -> None:
        async with httpx2.AsyncClient(base_url=url, timeout=300) as connection:
            number = first
            while not work.done():
                own = Received()
                await receive(connection, number % 16, own, max_tokens=SHORT)
                received.append((number % 16, own))
                number += 2
                await asyncio.sleep(0.3)  # leave processor time to the replicas that are starting

    await asyncio.gather(client(0), client(1))
    await work
    return received


@contextmanager
def deployed(path: Path, log: Path) -> Iterator[Forked]:
    """Run `spectr deploy` on its own cluster within the block; no process may be left behind."""
    fleet = Forked(run_spectr, ("deploy", str(path)), {}, log=log)
    try:
        fleet.wait_for(times_ready)
        yield fleet
        below = children(fleet.pid, "")
        os.kill(fleet.pid, signal.SIGTERM)
        assert fleet.wait() == 0, fleet.said
        assert below
        assert gone(below), "processes of the cluster are left"
    finally:
        fleet.kill()


def gone(processes: list[int]) -> bool:
    """Return whether all processes end within a minute."""
    deadline = time.monotonic() + 60
    while (left := [one for one in processes if Path(f"/proc/{one}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not left


def test_a_fleet_that_is_killed_grows_and_changes(folder: str, tmp_path: Path, undisturbed: list[Received]) -> None:
    """Texts are complete and right when one of two replicas is killed during 16 streams, when a third replica joins,
    and when all replicas are replaced under load."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'spectr-lm[ray]'")
    path, port = tmp_path / "app.yaml", free_port()
    url = f"http://127.0.0.1:{port}"
    write_plan(path, folder, port, replicas=2)
    with deployed(path, tmp_path / "said") as fleet:
        ready(url, 2)
        first = replicas(fleet)
        assert len(first) == 2

        def kill(received: list[Received]) -> bool:
            if sum(len(one.tokens) for one in received) < 16 * 60:
                return False
            os.kill(first[0], signal.SIGKILL)
            return True

        received = asyncio.run(receive_all(url, STREAMS, kill))
        assert all(one.is_sound for one in received)
        assert texts(received) == texts(undisturbed)
        page = httpx2.get(f"{url}/metrics").text
        assert float(page.split("\nspectr:router_failovers_total ")[1].split("\n")[0]) >= 1

        write_plan(path, folder, port, replicas=3)
        changed(fleet)
        ready(url, 3)
        second = replicas(fleet)
        assert len(second) == 3
        assert first[1] in second  # the surviving replica was not restarted

        write_plan(path, folder, port, replicas=2, revision="next")
        loaded = asyncio.run(under_load(url, lambda: changed(fleet)))
        assert len(loaded) >= 8
        assert all(one.is_sound for _, one in loaded), [one.error for _, one in loaded if not one.is_sound]
        for number, one in loaded:
            assert one.tokens == undisturbed[number].tokens[:SHORT]
        assert not set(second) & set(replicas(fleet))


@pytest.mark.filterwarnings("ignore")  # Ray itself warns when it is imported
def test_a_plan_as_ray_serve_is_told(tmp_path: Path) -> None:
    """Ray Serve gets the plan's scaling; a change of scaling keeps the version of replicas, other changes do not."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'spectr-lm[ray]'")
    from spectr.fleet.deploy import _application

    def model(text: str) -> Any:
        path = tmp_path / "app.yaml"
        path.write_text(text)
        plan = read_plan(path)
        router = _application(plan, plan.settings(("secret-key",)))._bound_deployment
        return router.init_args[0]._bound_deployment

    base = "model: m\nrunning: 8\nqueue: 4\n"
    scaled = model(base + "replicas: {least: 2, most: 5, queue: 6, up_delay: 1, down_delay: 9}")
    config = scaled._deployment_config.autoscaling_config
    assert (config.min_replicas, config.max_replicas, config.target_ongoing_requests) == (2, 5, 6)
    assert (config.upscale_delay_s, config.downscale_delay_s) == (1, 9)
    assert scaled._deployment_config.max_ongoing_requests == 12
    fixed = model(base + "replicas: 3\n")
    assert fixed._deployment_config.num_replicas == 3
    assert fixed.version == scaled.version
    assert model(base + "revision: other").version != fixed.version
    assert model(base + "rule: match").version != fixed.version


@pytest.mark.filterwarnings("ignore")
def test_whoever_leaves_a_replica_hangs_up() -> None:
    """If the consumer of a replica's answer stops reading, the application is told of the disconnect and ended."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'spectr-lm[ray]'")
    from spectr.fleet.serving import _run_asgi

    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([scope["path"], scope["query_string"], dict(scope["headers"])[b"host"], await receive()])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"b")]})
        for piece in (b"one", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        try:
            seen.append((await receive())["type"])
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def leave() -> list[Any]:
        parts = _run_asgi(app, Call("POST", "/v1/x?y=1", {"Host": "elsewhere"}, b"body"), "me")
        found = [await anext(parts), await anext(parts)]
        await parts.aclose()  # type: ignore[attr-defined]
        return found

    assert asyncio.run(leave()) == [("me", 200, {"x-a": "b"}), b"onetwo"]
    assert seen[:2] == ["/v1/x", b"y=1"]
    assert seen[3]["body"] == b"body"
    assert seen[4:] in (["http.disconnect"], ["cancelled"])
