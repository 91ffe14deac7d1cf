"""The cost of served tokens, from prefill and decode with a KV cache.

A copy of the program, on its own cores, serves `batch` sequences at a time. Each call
of prefill processes the prompts of `prefill_batch` sequences and makes the first token
of each sequence; one call of decode makes one more token of each sequence. A copy with
a full batch repeats all prefills of the batch, then `output_tokens - 1` decodes
(continuous batching changes the order, but not the sum). The model leaves out the
waiting of requests and the host's work.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from neuronjax.errors import InvalidProgramError
from neuronjax.timing.money import (
    MILLION,
    SECONDS_PER_HOUR,
    Price,
    check_utilization,
    energy_kwh,
    rented_hours,
)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The requests to serve, and how each copy of the program batches them.

    Attributes:
        prompt_tokens: tokens of one prompt.
        output_tokens: tokens of one answer.
        batch: sequences that a copy decodes together.
        prefill_batch: sequences of one call of prefill.
        utilization: share of the rented time in which a copy serves a full batch.
    """

    prompt_tokens: int
    output_tokens: int
    batch: int
    prefill_batch: int = 1
    utilization: float = 1.0

    def check(self) -> None:
        """Refuse traffic that cannot be served.

        Raises:
            InvalidProgramError: a number below 1, an answer of fewer than 2 tokens, a
                utilization not between 0 and 1, a batch that is not a multiple of
                `prefill_batch`.
        """
        check_utilization(self.utilization)
        least = {"prompt_tokens": 1, "output_tokens": 2, "batch": 1, "prefill_batch": 1}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise InvalidProgramError(
                    f"{name} of {getattr(self, name)}",
                    remedy=f"give at least {minimum}",
                )
        if self.batch % self.prefill_batch:
            raise InvalidProgramError(
                f"a batch of {self.batch}, prefilled {self.prefill_batch} at a time",
                remedy="let prefill_batch be a divisor of batch",
            )


@dataclass(frozen=True, kw_only=True)
class ServingCost:
    """The cost of serving on one machine with one policy.

    Attributes:
        machine: the instance.
        policy: the name of the policy.
        devices: logical cores in use.
        copies: copies of the program, each with its own weights and cache.
        time_to_first_token_seconds: one prefill, without the wait for a free copy.
        inter_token_seconds: one decode, without a prefill in between.
        loaded_inter_token_seconds: the mean time between tokens with a full batch,
            including prefills of other requests.
        request_seconds: from the prompt to the last token, without prefills of other
            requests.
        output_tokens_per_second: tokens of answers from all copies together, each with
            a full batch.
        requests_per_second: answers from all copies together, each with a full batch.
        dollars_per_million_input_tokens: the price of the time of prefill, per million
            tokens of prompts.
        dollars_per_million_output_tokens: the price of the time of decode, per million
            tokens of answers.
        dollars_per_million_tokens: the price of all time, per million tokens of prompts
            and answers.
        price: the price of the whole machine.
        hbm_bytes: bytes of weights, KV cache and workspace on one device; the cache is
            donated, so that it is updated in place.
        hbm_capacity_bytes: the HBM of a device.
        weights_bytes: the weights in `hbm_bytes`.
        kv_cache_bytes: the KV cache in `hbm_bytes`, of all sequences.
        max_batch: the most sequences whose KV cache fits on a device; None without a
            cache.
        kwh_per_million_tokens: energy for prompts and answers together, at the
            utilization, from the caller's watts; None without watts.
    """

    machine: str
    policy: str
    devices: int
    copies: int
    time_to_first_token_seconds: float
    inter_token_seconds: float
    loaded_inter_token_seconds: float
    request_seconds: float
    output_tokens_per_second: float
    requests_per_second: float
    dollars_per_million_input_tokens: float
    dollars_per_million_output_tokens: float
    dollars_per_million_tokens: float
    price: Price
    hbm_bytes: int
    hbm_capacity_bytes: int
    weights_bytes: int
    kv_cache_bytes: int
    max_batch: int | None
    kwh_per_million_tokens: float | None = None

    @property
    def fits(self) -> bool:
        """Return whether weights, cache and workspace fit in HBM."""
        return self.hbm_bytes <= self.hbm_capacity_bytes

    @property
    def record(self) -> dict[str, object]:
        """Return the fields as a flat dictionary, for a data frame or JSON."""
        found = dataclasses.asdict(self)
        del found["price"]
        return {**found, "fits": self.fits, **self.price.record}


@dataclass(frozen=True, kw_only=True)
class ServedMemory:
    """The use of HBM on a device that serves a program.

    Attributes:
        needed_bytes: bytes of weights, KV cache and workspace.
        capacity_bytes: the HBM of the device.
        weights_bytes: the weights in `needed_bytes`.
        kv_cache_bytes: the KV cache in `needed_bytes`, of all sequences.
    """

    needed_bytes: int
    capacity_bytes: int
    weights_bytes: int
    kv_cache_bytes: int

    def max_batch(self, batch: int) -> int | None:
        """Return the most sequences whose KV cache fits in HBM beside weights and
        workspace; None without a KV cache. `kv_cache_bytes` is for `batch` sequences.
        """
        if not self.kv_cache_bytes:
            return None
        rest = self.capacity_bytes - (self.needed_bytes - self.kv_cache_bytes)
        return max(0, int(rest * batch // self.kv_cache_bytes))


def serving_cost(
    machine: str,
    prefill_seconds: float,
    decode_seconds: float,
    price: Price,
    traffic: Traffic,
    memory: ServedMemory,
    *,
    policy: str = "",
    devices: int = 1,
    copies: int = 1,
    watts: float | None = None,
) -> ServingCost:
    """Return the cost of serving on a machine.

    Seconds are the time of one call, including its launch; `watts` is the average power
    of the whole machine."""
    decodes = traffic.output_tokens - 1
    # The seconds that one copy spends on one request.
    prefill = prefill_seconds / traffic.prefill_batch
    decode = decodes * decode_seconds / traffic.batch
    full = traffic.batch * (prefill + decode)
    others = (traffic.batch // traffic.prefill_batch - 1) * prefill_seconds
    usd_per_second = price.usd_per_hour / SECONDS_PER_HOUR / traffic.utilization
    per_copy = usd_per_second / copies * MILLION
    tokens = traffic.prompt_tokens + traffic.output_tokens
    hours = rented_hours((prefill + decode) / copies / tokens, traffic.utilization)
    energy = None if watts is None else energy_kwh(watts, hours) * MILLION
    return ServingCost(
        machine=machine,
        policy=policy,
        devices=devices,
        copies=copies,
        time_to_first_token_seconds=prefill_seconds,
        inter_token_seconds=decode_seconds,
        loaded_inter_token_seconds=decode_seconds + others / decodes,
        request_seconds=prefill_seconds + decodes * decode_seconds,
        output_tokens_per_second=copies * traffic.batch * traffic.output_tokens / full,
        requests_per_second=copies * traffic.batch / full,
        dollars_per_million_input_tokens=per_copy * prefill / traffic.prompt_tokens,
        dollars_per_million_output_tokens=per_copy * decode / traffic.output_tokens,
        dollars_per_million_tokens=per_copy * (prefill + decode) / tokens,
        price=price,
        hbm_bytes=memory.needed_bytes,
        hbm_capacity_bytes=memory.capacity_bytes,
        weights_bytes=memory.weights_bytes,
        kv_cache_bytes=memory.kv_cache_bytes,
        max_batch=memory.max_batch(traffic.batch),
        kwh_per_million_tokens=energy,
    )
