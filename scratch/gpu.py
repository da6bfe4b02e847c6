import json, os, sys, time, traceback
sys.path.insert(0,"src")
import torch
print(torch.__version__, torch.cuda.get_device_name())
try:
    import pytest; print("pytest", pytest.__version__)
except ImportError:
    print("no pytest"); pytest=None
import subprocess
print(subprocess.run([sys.executable,"-m","pytest","--noconftest","-o","addopts=","-q","-x" if 0 else "-q","--tb=short","tests/kernels","tests/verify/test_gpu.py"],capture_output=True,text=True,env={**os.environ,"PYTHONPATH":"src"}).stdout[-5000:],flush=True)
from spectr.bench.rules import run
r=run([49152,152064],[1,4,8,16],["race","match","kseq","optimal","path_block","block"],(64,"cuda",5))
for x in r["results"]: print(f'{x["rule"]:10s} V={x["vocabulary"]} K={x["children"]} {x["milliseconds"]:.4f} ms softmax {x["softmax_milliseconds"]:.4f} ratio {x["ratio"]:.2f}')
json.dump(r,open(os.environ.get("OUT","/tmp")+"/rules_h200.json","w"),indent=1)
# profile
from spectr.bench.rules import workload,_verdict,_captured
import spectr
from torch.profiler import profile, ProfilerActivity
for n in ("race","path_block","kseq","optimal"):
    w=workload(152064,8,64,"cuda"); f=_verdict(spectr.rule(n),w,lazily=False); f(); f()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA,ProfilerActivity.CPU]) as p:
        f(); torch.cuda.synchronize()
    ev=[e for e in p.events() if e.device_type==torch.autograd.DeviceType.CUDA]
    tot=sum(e.device_time for e in ev)
    print("==",n,"kernels",len(ev),"busy us",tot)
    from collections import Counter
    c=Counter(); m=Counter()
    for e in ev: c[e.name[:90]]+=e.device_time; m[e.name[:90]]+=1
    for a,b in c.most_common(14): print("   %7.1f us x%d %s"%(b,m[a],a))
