import json, os, sys, time, traceback
sys.path.insert(0,"src")
import torch, spectr
from spectr.bench.rules import workload,_verdict,_captured,_interleaved
import torch._dynamo
torch._dynamo.config.suppress_errors=False
out={}
x=torch.randn(64,152064,device="cuda")
for s in (1,3): 
    l=(s*x).softmax(-1); print("gpu softmax sum err", (l.sum(-1,dtype=torch.float64)-1).abs().max().item())
for V in (49152,152064):
    for K in (1,8):
        calls={}
        w=workload(V,K,64,"cuda"); calls["softmax"]=_captured(lambda: w.logits.softmax(-1))
        for n in ("race","kseq","optimal","path_block"):
            work=workload(V,K,64,"cuda"); f=_verdict(spectr.rule(n),work)
            ref=f(); calls[n]=_captured(f)
            t=time.time()
            try:
                torch._dynamo.reset()
                c=torch.compile(f,dynamic=False,fullgraph=False)
                v=c(); torch.cuda.synchronize()
                ok=all(torch.equal(getattr(v,a),getattr(ref,a)) for a in ("path","length","bonus"))
                calls[n+"+compile"]=_captured(c)
                print(V,K,n,"compiled in %.1fs"%(time.time()-t),"same",ok,flush=True)
            except Exception as e:
                print(V,K,n,"FAIL",repr(e)[:400],flush=True)
        r=_interleaved(calls,"cuda",5); s=r.pop("softmax")
        print(V,K,{k:"%.4f ms %.1f"%(v*1e3,v/s) for k,v in r.items()},flush=True)
