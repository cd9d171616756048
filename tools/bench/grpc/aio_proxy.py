"""A contender: any unary call passed on as bytes by ``grpc.aio``, metadata included.   aio_proxy.py PORT WORKER ..."""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import Callable


class Proxy(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Takes every method."""

    def __init__(self, workers: list[str]) -> None:
        channels = [grpc.aio.insecure_channel(worker) for worker in workers]
        self._channels = itertools.cycle(channels)
        self._methods: dict[str, list[Callable[..., Any]]] = {}

    def service(self, details: Any) -> Any:
        """Return the handler of a call."""
        method = details.method

        async def pass_on(request: bytes, context: Any) -> bytes:
            call = next(self._channels).unary_unary(method)(
                request, metadata=context.invocation_metadata(), timeout=context.time_remaining()
            )
            answer: bytes = await call
            context.set_trailing_metadata(await call.trailing_metadata())
            return answer

        return grpc.unary_unary_rpc_method_handler(pass_on)


async def main() -> None:
    """Serve until ended."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Proxy(sys.argv[2:]),))
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
