"""The bare server that hits are compared with: grpc.aio, one method, bytes in and bytes out."""

import asyncio
from typing import Any

import grpc


async def echo(message: bytes, _: Any) -> bytes:
    return message


async def main() -> None:
    server = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(echo)
    server.add_registered_method_handlers("bench.Echo", {"Echo": handler})
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
