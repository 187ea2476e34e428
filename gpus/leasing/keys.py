"""Key names of one fleet, one function per kind; `lua/includes/keys.lua` has the same for the scripts.

docs/explanation/leasing.md ("Keys") lists what each key holds. All carry the fleet's hash tag, so that one
node of a cluster holds them (docs/adr/0044-script-arguments-have-names.md).
"""

from __future__ import annotations

LAYOUT = 6
"""Version of the keys that this code reads and writes; raised when their meaning changes. Each layout has an
index of its own, one of which is in use (docs/explanation/leasing.md, "One layout in use")."""


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
        return f"{self.prefix}generation"

    def rebuild(self) -> str:
        return f"{self.prefix}rebuild"

    def ticking(self) -> str:
        return f"{self.prefix}ticking"

    def pools(self) -> str:
        return f"{self.prefix}pools"

    def servers(self) -> str:
        return f"{self.prefix}servers"

    def leases(self) -> str:
        return f"{self.prefix}leases"

    def held(self) -> str:
        return f"{self.prefix}held"

    def settling(self) -> str:
        return f"{self.prefix}settling"

    def expiry(self) -> str:
        return f"{self.prefix}expiry"

    def tenants(self) -> str:
        return f"{self.prefix}tenants"

    def estimates(self) -> str:
        return f"{self.prefix}estimates"

    def resting(self) -> str:
        return f"{self.prefix}resting"

    def beats(self) -> str:
        return f"{self.prefix}beats"

    def clock(self) -> str:
        return f"{self.prefix.rpartition(':')[0].rpartition(':')[0]}:clock"

    def pool(self, pool: str) -> str:
        return f"{self.prefix}pool:{pool}"

    def server(self, server: str) -> str:
        return f"{self.prefix}server:{server}"

    def slot(self, slot: str) -> str:
        return f"{self.prefix}slot:{slot}"

    def waits(self, tenant: str) -> str:
        return f"{self.prefix}waits:{tenant}"

    def running(self, tenant: str) -> str:
        return f"{self.prefix}running:{tenant}"

    def rate(self, tenant: str) -> str:
        return f"{self.prefix}rate:{tenant}"

    def telemetry(self, server: str) -> str:
        return f"{self.prefix}telemetry:{server}"

    def depth(self, pool: str) -> str:
        return f"{self.prefix}depth:{pool}"

    def parked_depth(self, pool: str) -> str:
        return f"{self.prefix}parked_depth:{pool}"

    def parked(self, pool: str) -> str:
        return f"{self.prefix}parked:{pool}"

    def marks(self, pool: str) -> str:
        return f"{self.prefix}marks:{pool}"

    def classes(self, pool: str) -> str:
        return f"{self.prefix}classes:{pool}"

    def states(self, pool: str) -> str:
        return f"{self.prefix}states:{pool}"

    def asked(self, pool: str) -> str:
        return f"{self.prefix}asked:{pool}"

    def foretold(self, pool: str) -> str:
        return f"{self.prefix}foretold:{pool}"

    def forecast(self, pool: str) -> str:
        return f"{self.prefix}forecast:{pool}"

    def pending(self, pool: str) -> str:
        return f"{self.prefix}pending:{pool}"

    def circuits(self, pool: str) -> str:
        return f"{self.prefix}circuits:{pool}"

    def kept(self, pool: str) -> str:
        return f"{self.prefix}kept:{pool}"

    def serving(self, pool: str, model: str) -> str:
        return f"{self.prefix}serving:{pool}:{model}"

    def class_servers(self, pool: str, class_id: str) -> str:
        return f"{self.prefix}class_servers:{pool}:{class_id}"

    def open(self, pool: str, class_id: str) -> str:
        return f"{self.prefix}open:{pool}:{class_id}"

    def free(self, pool: str, class_id: str, host: str) -> str:
        return f"{self.prefix}free:{pool}:{class_id}:{host}"

    def warm(self, pool: str, class_id: str, model: str, host: str) -> str:
        return f"{self.prefix}warm:{pool}:{class_id}:{model}:{host}"

    def line(self, pool: str, asked: int, model: str, tenant: str) -> str:
        return f"{self.prefix}line:{pool}:{asked}:{model}:{tenant}"

    def models(self, queue: str, tenant: str) -> str:
        return f"{self.prefix}models:{queue}:{tenant}"

    def broad(self, queue: str) -> str:
        return f"{self.prefix}broad:{queue}"

    def paid(self, queue: str) -> str:
        return f"{self.prefix}paid:{queue}"

    def since(self, queue: str) -> str:
        return f"{self.prefix}since:{queue}"

    def class_turn(self, queue: str, class_id: str) -> str:
        return f"{self.prefix}class_turn:{queue}:{class_id}"

    def turn(self, queue: str, model: str | None = None) -> str:
        return f"{self.prefix}turn:{queue}:{model}" if model else f"{self.prefix}turn:{queue}"

    def heads(self, queue: str, model: str | None = None) -> str:
        return f"{self.prefix}heads:{queue}:{model}" if model else f"{self.prefix}heads:{queue}"
