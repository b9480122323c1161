import sys, os, warnings; warnings.simplefilter("ignore")
sys.path[:0]=["bench"]
import torch, multiprocessing as mp, json
from torch.profiler import profile, ProfilerActivity
def one(job):
    name,dt,train=job
    import torchweld
    from composition_cases import GROUPS, made
    from compositions import _stepped, timed
    from functools import partial
    import fcntl
    torch._inductor.config.compile_threads=1
    torch.compiler.reset()
    c=next(c for g in GROUPS for c in g("cuda") if c.name==name)
    d=getattr(torch,dt)
    m=c.make("cuda",d); ins=made(c,"cuda",d)
    out=f"===== {name} {dt} train={train}\n"
    try:
        for way,f in (("ours",torchweld.fuse(m)),("inductor",torch.compile(m))):
            with torch.set_grad_enabled(train):
                call=_stepped(f,m,ins) if train else partial(f,*ins)
                for _ in range(4): call()
                torch.cuda.synchronize()
                with open("/tmp/prof.lock","w") as L:
                    fcntl.flock(L,fcntl.LOCK_EX)
                    (t,)=timed([call],"cuda")
                    with profile(activities=[ProfilerActivity.CUDA]) as p:
                        for _ in range(10): call()
                        torch.cuda.synchronize()
            out+=f" {way}: {t*1e6:.1f} us\n"
            for e in sorted(p.key_averages(),key=lambda e:-e.device_time_total):
                if e.device_time_total>0: out+=f"    {e.device_time_total/10:9.1f} us  x{e.count/10:.1f} {e.key[:90]}\n"
    except Exception as e: out+=" FAILED "+repr(e)[:300]+"\n"
    return out
if __name__=="__main__":
    jobs=[]
    for a in sys.argv[2:]:
        n,dt,tr=a.split("|"); jobs.append((n,dt,tr=="t"))
    with mp.get_context("spawn").Pool(int(sys.argv[1]),maxtasksperchild=4) as pool:
        for o in pool.imap_unordered(one,jobs): print(o,flush=True)
