"""Runs localstripe, a stand-in for Stripe, for a test: on a free port, which is printed, until standard input closes.

The store stays in memory; localstripe by itself writes all of it to one file of the machine at every change. Lists of intents and refunds can be
asked for what was created since a time, as Stripe's can; localstripe by itself refuses that.
"""

import asyncio
import sys

from aiohttp import web
from localstripe import resources
from localstripe.server import app

resources.Store.dump_to_disk = lambda self: None


def since(kind):
    list_all = kind._api_list_all.__func__

    def list_since(cls, url, created=None, **rest):
        found = list_all(cls, url, **rest)
        if created is not None:
            found._list = [it for it in found._list if it.created >= int(created["gte"])]
        return found

    kind._api_list_all = classmethod(list_since)


for kind in (resources.PaymentIntent, resources.Refund):
    since(kind)


async def main():
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(site._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


asyncio.run(main())
