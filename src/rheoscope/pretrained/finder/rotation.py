"""The rotation of queries and keys by their positions, read off a tape and continued to any position."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.coordinate_choice import Choice, coordinate_choice
from rheoscope.pretrained.finder.coordinates import CoordinateMap, from_token_rows, is_positions, token_rows
from rheoscope.pretrained.finder.tape import ModuleCall, Tape, Value, replay, tensors_of, with_tensors
from rheoscope.shapes import RheoscopeError

N_PROBES, FAR_POSITION = 4, 1 << 20
RELATIVE_ERROR = 1e-9
FULL_TABLE = 512
"""Positions below this one are read together. Farther ones are read alone if few of them are needed."""
POSITIONS_PER_READ = 16
"""Positions that are read together with each needed one."""
LOOKUPS = frozenset({"index", "gather", "index_select", "embedding"})
"""Operations that read rows of a table by their numbers."""
Arrival = tuple[Value, CoordinateMap]
"""A tensor, and where its coordinates arrive in the rows of the heads."""


class PlacesError(RheoscopeError):
    """Rotations follow the places of patches, which only an image of the network's own size shows."""


@dataclass(frozen=True, eq=False, repr=False)
class RotaryTables:
    """x ↦ x C(p) + x[partner] S(p): every coordinate c of a head is mixed with one other by numbers that depend on position p."""

    partner: Int[Tensor, " k"]
    tape: Tape
    rows: Value
    arrivals: tuple[Arrival, ...]
    source: "PositionSource"
    width: int
    cache: dict[tuple[int | tuple[int, ...], torch.device, torch.dtype], tuple[Tensor, Tensor]] = field(
        default_factory=dict
    )

    def rotate(self, x: Float[Tensor, "b h n k"], positions: Int[Tensor, " n"]) -> Float[Tensor, "b h n k"]:
        cosines, sines = self._cosines_and_sines(x, positions)
        return x * cosines + self.partners(x) * sines

    def rotate_back(self, y: Float[Tensor, "b h n k"], positions: Int[Tensor, " n"]) -> Float[Tensor, "b h n k"]:
        """The transpose, since the partner of a partner is the coordinate itself."""
        cosines, sines = self._cosines_and_sines(y, positions)
        return y * cosines + self.partners(y * sines)

    def _cosines_and_sines(
        self, x: Float[Tensor, "b h n k"], positions: Int[Tensor, " n"]
    ) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"]]:
        """C and S of every token of x."""
        places, rows = needed_places(positions)
        cosines, sines = self.tables(places, x)
        return cosines[rows], sines[rows]

    @cached_property
    def partners(self) -> Choice:
        """x ↦ x[partner]"""
        return coordinate_choice(self.partner.to(self.tape.template(self.rows).device))

    def tables(
        self, places: Int[Tensor, " m"], x: Float[Tensor, "*n k"]
    ) -> tuple[Float[Tensor, "_ k"], Float[Tensor, "_ k"]]:
        """C and S for x at the positions `places`. Tables from 0 on have more rows and are computed once for each power of two.

        Tables that depend on the length of a text have no more rows.
        """
        length = len(places)
        is_full = int(places[-1]) == length - 1
        if is_full and not self.source.depends_on_length:
            places = torch.arange(1 << max(6, (length - 1).bit_length()))
        key = (len(places) if is_full else tuple(places.tolist())), x.device, x.dtype
        if key not in self.cache:
            cosines, sines = self._read_tables(places.cpu())
            self.cache[key] = cosines.to(x), sines.to(x)
        return self.cache[key]

    def _read_tables(self, places: Int[Tensor, " m"]) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k"]]:
        def image(pattern: Float[Tensor, " k"]) -> Float[Tensor, "m k"]:
            chunks = self.source.chunks(places)
            return torch.cat(
                [rotated_rows(self.tape, self.rows, self.arrivals, self.width, pattern, x) for x in chunks]
            )[: len(places)]

        return _cosines_and_sines(self.partner, image)


def needed_places(positions: Int[Tensor, " n"]) -> tuple[Int[Tensor, " m"], Int[Tensor, " n"]]:
    """Positions whose numbers are read, and the place of each position among them: all up to the last one, unless it is far."""
    last = int(positions.max()) if len(positions) else 0
    if last >= max(FULL_TABLE, len(positions)):
        places, rows = positions.unique(return_inverse=True)
        if POSITIONS_PER_READ * len(places) <= last:
            return places, rows
    return torch.arange(last + 1), positions


def _cosines_and_sines(
    partner: Int[Tensor, " k"], image: Callable[[Float[Tensor, " k"]], Float[Tensor, "n k"]]
) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"]]:
    """C and S, from what becomes of two vectors at every position: the first coordinates of all planes, and the second."""
    axes = torch.arange(len(partner))
    is_first = partner >= axes
    images = image(is_first.double()), image((~is_first).double())
    own, other = torch.where(is_first, *images), torch.where(is_first, *images[::-1])
    return own, torch.where(partner == axes, 0.0, other)


def rotated_rows(
    tape: Tape,
    rows: Value,
    arrivals: tuple[Arrival, ...],
    width: int,
    pattern: Float[Tensor, " k"],
    constants: dict[Value, Tensor],
) -> Float[Tensor, "n k"]:
    """What becomes of a vector of the first head at every position."""
    substitutions = dict(constants)
    for source, placement in arrivals:
        numbers = torch.zeros(tape.template(source).numel() // tape.n_tokens, dtype=torch.float64)
        filled = placement.is_filled.cpu()
        wanted = pattern.repeat(len(filled) // width)[filled] - placement.bias.cpu()[filled]
        numbers[placement.index.cpu()[filled]] = wanted / placement.gain.cpu()[filled]
        substitutions[source] = from_token_rows(tape, numbers.expand(tape.n_tokens, -1), source).to(
            tape.template(source).device
        )
    return token_rows(tape, replay(tape, [rows], substitutions)[0]).cpu()[:, :width]


@dataclass(frozen=True, eq=False, repr=False)
class PlaceTables:
    """x ↦ x C_i + x[partner] S_i for the token i of the tape: rotations by the place of a patch in an image of one size."""

    partners: Choice
    cosines: Float[Tensor, "n k"]
    sines: Float[Tensor, "n k"]

    def rotate(self, x: Float[Tensor, "b h n k"], tokens: Int[Tensor, " n"]) -> Float[Tensor, "b h n k"]:
        cosines, sines = (table.to(x.device)[tokens].to(x.dtype) for table in (self.cosines, self.sines))
        return x * cosines + self.partners(x) * sines


@dataclass(frozen=True, eq=False)
class PositionSource:
    """Where the numbers that depend on position come from: a module that reads positions, or positions on the tape."""

    tape: Tape
    call: ModuleCall | None
    positions: tuple[Value, ...]

    def chunks(self, places: Int[Tensor, " m"]) -> list[dict[Value, Tensor]]:
        """Substitutions that put n tokens at a time at these positions, and the rest of the last n at the last one."""
        n = self.tape.n_tokens
        padded = torch.cat([places, places[-1:].expand(-len(places) % n)])
        if self.call is None:
            return [self._substitution(part) for part in padded.clamp(max=self.last_row).split(n)]
        outputs = self._at_positions(padded.to(self._device))
        return [
            {v: _wide(out.narrow(_token_axis(self.tape, v), start, n)) for v, out in outputs.items()}
            for start in range(0, len(padded), n)
        ]

    def _substitution(self, places: Int[Tensor, " n"]) -> dict[Value, Tensor]:
        """These positions on the tape."""
        return {v: places.to(x).expand_as(x) for v in self.positions for x in (self.tape.tensors[v],)}

    def start_at(self, position: int) -> dict[Value, Tensor]:
        """The positions on the tape, from this one on."""
        return {v: self.tape.tensors[v] - self.tape.tensors[v].flatten()[0] + position for v in self.positions}

    @cached_property
    def last_row(self) -> int:
        """The last position that is a row of all tables that positions are looked up in."""
        readers = self.tape.descendants(set(self.positions))
        rows = [
            self.tape.template(operation.operands[0]).shape[operation.args[1] if operation.name == "gather" else 0]
            for operation in self.tape.operations
            if operation.name in LOOKUPS and operation.operands[-1] in readers and operation.operands[0] not in readers
        ]
        return min(rows, default=FAR_POSITION) - 1

    @cached_property
    def depends_on_length(self) -> bool:
        """Whether a far token changes the numbers of earlier ones (rotary tables that follow the length of the text)."""
        if self.call is None:
            return False
        n = self.tape.n_tokens
        positions = torch.arange(n, device=self._device)
        far, near = (  # a dynamic scaling resets its frequencies for the last, short text
            self._at_positions(positions.clone().index_fill_(0, positions[-1:], x)) for x in (FAR_POSITION, n - 1)
        )
        return any(
            not torch.equal(
                near[v].narrow(_token_axis(self.tape, v), 0, n - 1), far[v].narrow(_token_axis(self.tape, v), 0, n - 1)
            )
            for v in near
        )

    @property
    def _device(self) -> torch.device:
        assert self.call is not None
        return next((self.tape.template(v).device for v in self.call.inputs), torch.device("cpu"))

    @torch.no_grad()
    def _at_positions(self, positions: Int[Tensor, " n"]) -> dict[Value, Tensor]:
        """The outputs of the module for other positions."""
        assert self.call is not None

        def at_positions(x: Tensor) -> Tensor:
            is_position = not x.is_floating_point() and x.shape[-1:] == (self.tape.n_tokens,)
            return positions.expand(*x.shape[:-1], len(positions)) if is_position else x

        args, kwargs = with_tensors((self.call.args, self.call.kwargs), lambda v: at_positions(self.tape.tensors[v]))
        return dict(zip(self.call.outputs, tensors_of(self.call.module(*args, **kwargs)), strict=True))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.complex128) if x.is_complex() else x.double()


def _token_axis(tape: Tape, value: Value) -> int:
    return next(axis for axis, size in enumerate(tape.template(value).shape) if size == tape.n_tokens)


def read_rotation(
    tape: Tape, rows: Value, arrivals: tuple[Arrival, ...], tokens: set[Value], width: int
) -> RotaryTables | PlaceTables | None:
    """The rotation between the weights and the rows of a product; None if positions change nothing.

    Layers of one class whose rows read the same positions share it.
    """
    constants = tape.ancestors(rows, {source for source, _ in arrivals}) - tokens
    owner = tape.operations[tape.producer[rows]].module
    key = "rotation", type(owner), width, frozenset(v for v in constants if _is_table(tape, v))
    return tape.original.share(key, lambda: _read_rotation(tape, rows, arrivals, tokens, width))


def _is_table(tape: Tape, value: Value) -> bool:
    """Whether a tensor has numbers for every token and was returned by a module, or holds positions."""
    return value in tape.returned and tape.n_tokens in tape.template(value).shape


def _read_rotation(
    tape: Tape, rows: Value, arrivals: tuple[Arrival, ...], tokens: set[Value], width: int
) -> RotaryTables | PlaceTables | None:
    probes = torch.rand(N_PROBES, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    images = torch.stack([rotated_rows(tape, rows, arrivals, width, probe, {}) for probe in probes])
    if float((images - probes[:, None]).abs().max()) < RELATIVE_ERROR:
        return None
    partner = _partners(probes, images)
    source = _position_source(tape, rows, arrivals, tokens)
    if source is None:
        device = tape.template(rows).device
        tables = _cosines_and_sines(partner, lambda x: rotated_rows(tape, rows, arrivals, width, x, {}))
        return PlaceTables(coordinate_choice(partner.to(device)), *(table.to(device) for table in tables))
    return RotaryTables(partner, tape, rows, arrivals, source, width)


def _partners(probes: Float[Tensor, "m k"], images: Float[Tensor, "m n k"]) -> Int[Tensor, " k"]:
    """The coordinate with which each coordinate is mixed, by least squares over the probes."""
    width = probes.shape[1]
    own = images[:, :, :] / probes[:, None]
    is_scaled = ((own - own[:1]).abs().amax((0, 1)) < RELATIVE_ERROR).tolist()
    partner = torch.arange(width)
    for c in range(width):
        if is_scaled[c]:
            continue
        basis = torch.stack([probes[:, c : c + 1].expand(-1, width), probes], -1).permute(1, 0, 2)
        target = images[:, :, c].expand(width, -1, -1)
        others = torch.arange(width) != c
        solution = torch.linalg.lstsq(basis[others], target[others]).solution
        residual = torch.full((width,), torch.inf, dtype=torch.float64)
        residual[others] = (basis[others] @ solution - target[others]).abs().amax((-1, -2))
        partner[c] = residual.argmin()
        if float(residual.min()) > 1e-7:
            raise RheoscopeError(Message("positions mix more than two coordinates of a query or key"))
    if not bool((partner[partner] == torch.arange(width)).all()):
        raise RheoscopeError(Message("positions do not rotate queries and keys in planes"))
    return partner


def _position_source(
    tape: Tape, rows: Value, arrivals: tuple[Arrival, ...], tokens: set[Value]
) -> PositionSource | None:
    """The module whose outputs depend on positions and reach the rows without the tokens, else positions themselves.

    None if there are only the places of the tokens in an image of the network's own size.
    """
    constants = tape.ancestors(rows, {source for source, _ in arrivals}) - tokens
    calls = [
        call
        for call in tape.calls
        if not constants.isdisjoint(call.outputs)
        and any(is_positions(tape, v) for v in call.inputs)
        and all(v in constants or v not in tokens for v in call.outputs)
    ]
    if calls:
        return PositionSource(tape, calls[-1], ())
    positions = tuple(v for v in constants if is_positions(tape, v))
    first = tuple(v for v in positions if tape.ancestors(v).isdisjoint(set(positions) - {v}))
    if not first and tape.has_own_size:
        return None
    if not first:
        raise PlacesError(Message("queries and keys depend on their place, but on no positions"))
    return PositionSource(tape, None, first)
