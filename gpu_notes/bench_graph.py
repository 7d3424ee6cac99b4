import sys, time, torch
sys.path.insert(0, "/tmp/g/dev")
from graph_engine import GraphEngine
from tinyzero_trainer.models import load_model
from tinyzero_trainer.rollout import TorchEngine, SamplingParams
from tinyzero_trainer.tiny import TinyShape, build_model, build_tokenizer
dev=torch.device("cuda")
lm=load_model(None,dev)
tok=lm.tokenizer
prompts=[tok(f"{i%19+1} {i%17+2} {i%13+3} -> {i%47+3}\n")["input_ids"] for i in range(64)]
# correctness in float32
a=TorchEngine(lm.model,eos_ids=lm.eos_ids,pad_id=lm.pad_id,max_sequences=512)
b=GraphEngine(lm.model,eos_ids=lm.eos_ids,pad_id=lm.pad_id,max_sequences=512,dtype=torch.float32)
for params in (SamplingParams(128,1.0,logprobs=True),SamplingParams(128,0.0,logprobs=True)):
    ra=a.generate(prompts,4,params,seed=3); rb=b.generate(prompts,4,params,seed=3)
    same=sum(x.token_ids==y.token_ids for g,h in zip(ra,rb) for x,y in zip(g,h)); n=len(prompts)*4
    d=max(abs(p-q) for g,h in zip(ra,rb) for x,y in zip(g,h) if x.token_ids==y.token_ids for p,q in zip(x.logprobs,y.logprobs))
    fin=sum(x.finished==y.finished for g,h in zip(ra,rb) for x,y in zip(g,h))
    print("temperature",params.temperature,"same",same,"of",n,"max dlogp",d,"finished same",fin,"len",sum(len(x.token_ids) for g in rb for x in g)/n,flush=True)
from tinyzero_trainer.records import Rollout
def speed(name,engine,prompts,samples,params,reps=3):
    for r in range(reps):
        torch.cuda.synchronize(); t=time.time()
        out=engine.generate(prompts,samples,params,seed=r)
        torch.cuda.synchronize(); dt=time.time()-t
        n=sum(len(x.token_ids) for g in out for x in g)
        print(f"{name} rep {r}: {n} tokens {dt:.2f}s {n/dt/1e3:.0f}k tok/s mem {torch.cuda.max_memory_allocated()/2**30:.1f} GiB",flush=True)
P=SamplingParams(256,1.0,logprobs=True)
big=[prompts[i%64] for i in range(256)]
speed("tiny graph bf16 256x16",GraphEngine(lm.model,eos_ids=lm.eos_ids,pad_id=lm.pad_id,max_sequences=4096),big,16,P)
speed("tiny torch 256x16",TorchEngine(lm.model,eos_ids=lm.eos_ids,pad_id=lm.pad_id,max_sequences=4096),big,16,P,2)
tokz=build_tokenizer(); m=build_model(TinyShape(384,6,64,1024),tokz,0).to(dev); print("params",sum(p.numel() for p in m.parameters())/1e6)
speed("9.8M graph, no eos",GraphEngine(m,eos_ids=[10**6],pad_id=0,max_sequences=4096),big,16,P)
speed("9.8M graph, no eos, 1024 seqs",GraphEngine(m,eos_ids=[10**6],pad_id=0,max_sequences=1024),big[:64],16,P)
g=GraphEngine(m,eos_ids=[10**6],pad_id=0,max_sequences=4096)
g.generate(big,16,SamplingParams(64,1.0),seed=0)
from torch.profiler import profile, ProfilerActivity
with profile(activities=[ProfilerActivity.CUDA]) as prof:
    g.generate(big,16,SamplingParams(64,1.0),seed=0); torch.cuda.synchronize()
print(prof.key_averages().table(sort_by="cuda_time_total",row_limit=14,max_name_column_width=60))
