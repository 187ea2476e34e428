"""Key names of one fleet, one function per kind; `lua/includes/keys.lua` has the same for the scripts.

docs/explanation/leasing.md ("Keys") lists what each key holds. All carry the fleet's hash tag, so that one
node of a cluster holds them (docs/adr/0044-named-keys-and-script-arguments.md).
"""

from __future__ import annotations

LAYOUT = 6
"""Version of the keys that this code reads and writes; raised when their meaning changes. Each layout has its
own index; one of them is in use (docs/explanation/leasing.md, "One layout in use")."""


def prefix(fleet: str, layout: int = 0) -> str:
    """Key prefix of a fleet, such as ``gpuq:{main}:v6:``. layout: 0: this code's own. Raises ValueError."""
    if not fleet or any(mark in fleet for mark in "{}:"):
        raise ValueError(f"a fleet's name must not be empty or contain braces or colons, it is {fleet!r}")
    return f"gpuq:{{{fleet}}}:v{layout or LAYOUT}:"


class Keys:
    """The keys of one fleet's index. Raises ValueError for a fleet's name that no key can hold.

    queue: ``pool:band``, the band (0 to 2) in which tenants wait. asked: the band that a ticket asks for.
    host: empty for servers without a host. model: None for the order over all models.
    """

    def __init__(self, fleet: str, layout: int = 0) -> None:
        self.prefix = prefix(fleet, layout)

    def generation(self) -> str:
        """Hash: id of the index's generation, the server run it is valid on, and its opening time."""
        return f"{self.prefix}generation"

    def rebuild(self) -> str:
        """Hash: owner of the rebuild lock, its heartbeat, and the phase."""
        return f"{self.prefix}rebuild"

    def ticking(self) -> str:
        """Hash: times of the last sweep and renewal, the longest silence, and the floor of expiry."""
        return f"{self.prefix}ticking"

    def pools(self) -> str:
        """Set: names of all pools."""
        return f"{self.prefix}pools"

    def servers(self) -> str:
        """Set: names of all servers."""
        return f"{self.prefix}servers"

    def leases(self) -> str:
        """Hash: slot by attempt."""
        return f"{self.prefix}leases"

    def held(self) -> str:
        """Hash: attempt by job, for leases, followers and uncommitted ends."""
        return f"{self.prefix}held"

    def settling(self) -> str:
        """Hash: packed uncommitted end by attempt."""
        return f"{self.prefix}settling"

    def expiry(self) -> str:
        """Zset: attempts by expiry (µs)."""
        return f"{self.prefix}expiry"

    def tenants(self) -> str:
        """Hash: packed rules by tenant."""
        return f"{self.prefix}tenants"

    def estimates(self) -> str:
        """Hash: estimated GPU-seconds by `model:tenant` and by model."""
        return f"{self.prefix}estimates"

    def resting(self) -> str:
        """Zset: servers by the end of their rest (µs)."""
        return f"{self.prefix}resting"

    def beats(self) -> str:
        """Hash: packed heartbeat by pinned server; outside the index."""
        return f"{self.prefix}beats"

    def clock(self) -> str:
        """String: the clock of Redis and the fleet's time at the last save; outside the index."""
        return f"{self.prefix.rpartition(':')[0].rpartition(':')[0]}:clock"

    def pool(self, pool: str) -> str:
        """Packed: the pool's rules, counts and queues."""
        return f"{self.prefix}pool:{pool}"

    def server(self, server: str) -> str:
        """Packed: the server."""
        return f"{self.prefix}server:{server}"

    def slot(self, slot: str) -> str:
        """Packed: the slot and its lease."""
        return f"{self.prefix}slot:{slot}"

    def waits(self, tenant: str) -> str:
        """Set: pools in which the tenant has tickets."""
        return f"{self.prefix}waits:{tenant}"

    def running(self, tenant: str) -> str:
        """Set: attempts that count for the tenant's running limit."""
        return f"{self.prefix}running:{tenant}"

    def rate(self, tenant: str) -> str:
        """Packed: the tenant's token bucket of submits."""
        return f"{self.prefix}rate:{tenant}"

    def telemetry(self, server: str) -> str:
        """List: packed telemetry readings of the server."""
        return f"{self.prefix}telemetry:{server}"

    def summaries(self, server: str) -> str:
        """List: packed summaries of its telemetry."""
        return f"{self.prefix}summaries:{server}"

    def depth(self, pool: str) -> str:
        """Hash: number of waiting tickets by model."""
        return f"{self.prefix}depth:{pool}"

    def parked_depth(self, pool: str) -> str:
        """Hash: number of parked tenants' tickets by model."""
        return f"{self.prefix}parked_depth:{pool}"

    def parked(self, pool: str) -> str:
        """Hash: reasons by parked tenant, one letter each."""
        return f"{self.prefix}parked:{pool}"

    def marks(self, pool: str) -> str:
        """Hash: skips and avoided server by ticket."""
        return f"{self.prefix}marks:{pool}"

    def placed(self, pool: str) -> str:
        """Hash: number of leases of tickets that preferred a server, by where they were placed."""
        return f"{self.prefix}placed:{pool}"

    def classes(self, pool: str) -> str:
        """Hash: models by class of servers."""
        return f"{self.prefix}classes:{pool}"

    def states(self, pool: str) -> str:
        """Hash: number of slots by state."""
        return f"{self.prefix}states:{pool}"

    def asked(self, pool: str) -> str:
        """Hash: time of the last claim by host (µs)."""
        return f"{self.prefix}asked:{pool}"

    def foretold(self, pool: str) -> str:
        """Hash: stored guess of the wait by job, for one job in four."""
        return f"{self.prefix}foretold:{pool}"

    def forecast(self, pool: str) -> str:
        """Hash: learnt factors by decade of the guess."""
        return f"{self.prefix}forecast:{pool}"

    def pending(self, pool: str) -> str:
        """Hash: number of pending wakes by host."""
        return f"{self.prefix}pending:{pool}"

    def circuits(self, pool: str) -> str:
        """Hash: packed circuit breaker by model."""
        return f"{self.prefix}circuits:{pool}"

    def kept(self, pool: str) -> str:
        """Hash: end of the block (µs), or attempt of the trial, by blocked model."""
        return f"{self.prefix}kept:{pool}"

    def serving(self, pool: str, model: str) -> str:
        """Set: servers that are on and run the model."""
        return f"{self.prefix}serving:{pool}:{model}"

    def class_servers(self, pool: str, class_id: str) -> str:
        """Set: servers of the class."""
        return f"{self.prefix}class_servers:{pool}:{class_id}"

    def open(self, pool: str, class_id: str) -> str:
        """Zset: hosts by their number of listed slots."""
        return f"{self.prefix}open:{pool}:{class_id}"

    def free(self, pool: str, class_id: str, host: str) -> str:
        """Zset: listed slots by the time since which they are free (µs)."""
        return f"{self.prefix}free:{pool}:{class_id}:{host}"

    def warm(self, pool: str, class_id: str, model: str, host: str) -> str:
        """Zset: those of them that are warm for the model."""
        return f"{self.prefix}warm:{pool}:{class_id}:{model}:{host}"

    def line(self, pool: str, asked: int, model: str, tenant: str) -> str:
        """Zset: tickets of one line by place plus head start (µs)."""
        return f"{self.prefix}line:{pool}:{asked}:{model}:{tenant}"

    def models(self, queue: str, tenant: str) -> str:
        """Zset: the tenant's lines in the queue by their first ticket."""
        return f"{self.prefix}models:{queue}:{tenant}"

    def broad(self, queue: str) -> str:
        """Set: tenants with more than four lines in the queue."""
        return f"{self.prefix}broad:{queue}"

    def paid(self, queue: str) -> str:
        """Hash: finish tag by idle tenant."""
        return f"{self.prefix}paid:{queue}"

    def since(self, queue: str) -> str:
        """Hash: start of the backlog by waiting tenant (µs)."""
        return f"{self.prefix}since:{queue}"

    def class_turn(self, queue: str, class_id: str) -> str:
        """Zset: broad tenants with a model of the class by start tag."""
        return f"{self.prefix}class_turn:{queue}:{class_id}"

    def turn(self, queue: str, model: str | None = None) -> str:
        """Zset: waiting tenants by start tag (the fair order)."""
        return f"{self.prefix}turn:{queue}:{model}" if model else f"{self.prefix}turn:{queue}"

    def heads(self, queue: str, model: str | None = None) -> str:
        """Zset: waiting tenants by first ticket (the fifo order)."""
        return f"{self.prefix}heads:{queue}:{model}" if model else f"{self.prefix}heads:{queue}"
