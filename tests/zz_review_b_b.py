import asyncio, random, time
from uuid import uuid4
import grpc, pytest
from glossa.registry.v1 import registry_pb2 as rpb
from glossa.quota.v1 import quota_pb2 as pb
from tests.quota.conftest import ask, ledger, quota_service
from tests.suite import Keys, metadata
from tests.cache.conftest import house, open_house, details
from tests.zz_review_b_a import HEAD, chunk

async def test_settle_random(databases, keys):
    async with quota_service(databases, keys) as ledger:
        rnd=random.Random(1); users=["alice","bob","carl"]
        bad=0; errs={}
        async def go():
            ids=[str(uuid4()) for _ in range(4)]
            ops=[]
            for _ in range(12):
                i=rnd.randrange(4); u=users[i%3] if rnd.random()<.8 else rnd.choice(users)
                if rnd.random()<.35:
                    ops.append(ledger.admit_many(*[ask(u,request_id=ids[i],outcome=rnd.choice([1,2,3])) for _ in range(rnd.randint(1,3))]))
                else:
                    its=[]
                    for _ in range(rnd.randint(1,6)):
                        j=rnd.randrange(4)
                        its.append(pb.RefundRequest.Item(request_id=ids[j],user_id=rnd.choice(users),reason=rnd.choice([1,2,3,4]),served_as=rnd.choice([1,2,3])))
                    ops.append(ledger.refund(*its))
            for r in await asyncio.gather(*ops, return_exceptions=True):
                if isinstance(r,BaseException):
                    k=(r.code().name,r.details()) if isinstance(r,grpc.aio.AioRpcError) else repr(r); errs[k]=errs.get(k,0)+1
        for _ in range(25): await go()
        print("ERRS",errs,"DRIFT",await ledger.drift())
        print(await ledger.connection.fetch("select status,outcome,refund_reason,count(*) from quota.explain_requests group by 1,2,3"))
        # each charge: sum of its entries == -(units if charged else 0)
        print("MISMATCH", await ledger.connection.fetch("select r.request_id,r.status,r.quota_units,sum(e.units) from quota.explain_requests r join quota.ledger_entries e using(request_id) group by 1,2,3 having -sum(e.units)<> case when r.status='charged' then r.quota_units else 0 end"))
        print("CACHED aborted", await ledger.connection.fetch("select * from quota.explain_requests where status='refunded' and outcome='cached' and refund_reason='request_aborted' limit 2"))

async def test_upload_cut(house):
    ch=house.suite.channel("registry")
    call=ch.stream_unary("/glossa.registry.v1.RegistryService/UploadDocument")
    M=chunk(1<<20)
    async def big():
        yield HEAD
        for _ in range(60): yield M
    async def bad():
        yield HEAD
        yield M
        yield b"\x0a\x05\xff\xfe"
        for _ in range(60): yield M
    for name,g,md in (("NOTOKEN",big,()),("SCOPE",big,house.suite.bearer("worker")),("UNDEC",bad,house.suite.bearer())):
        out={}
        for _ in range(15):
            try: await call(g(),metadata=md,timeout=20); r="OK"
            except grpc.aio.AioRpcError as e: r=(e.code().name,(e.details() or "")[:60])
            except BaseException as e: r=repr(e)[:80]
            out[r]=out.get(r,0)+1
        print("CUT",name,out)

async def test_relay_under_internal(house):
    """every refund answered INTERNAL: how many calls per pass?"""
    await house.suite.explain("alice", await house.document("alice"))
    job=await house.worker.lease()
    await house.admin.execute("ALTER TABLE quota.ledger_entries ADD CONSTRAINT x CHECK (kind <> 'void') NOT VALID")
    await house.admin.execute("INSERT INTO cache.outbox (request_id,user_id,reason) SELECT gen_random_uuid(),'u'||g,'request_aborted' FROM generate_series(1,600) g")
    t=time.time(); await house.worker.fail(job, permanent=True)
    await house.until("SELECT balance_units = 1000 FROM quota.accounts WHERE user_id = 'alice'")
    print("RELAY good one delivered behind 600 poison after", round(time.time()-t,1))
    await house.admin.execute("ALTER TABLE quota.ledger_entries DROP CONSTRAINT x")
    await house.until("SELECT count(*) = 0 FROM cache.outbox")
    print("RELAY all", round(time.time()-t,1))
