use std::time::Instant;
use falcon_kernels::{Call, Form, Inputs, Rule, View};
fn main() {
    let t = 65536usize;
    let pools: Vec<_> = [1, 2].iter().map(|n| rayon::ThreadPoolBuilder::new().num_threads(*n).build().unwrap()).collect();
    for d in [32usize, 64, 128] {
        for rule in [Rule::FALCON_1, Rule::FALCON_1A, Rule::FALCON_3, Rule::FALCON_2] {
            let num = |n: usize, s: usize| -> Vec<f32> { (0..n).map(|i| ((i * s) % 1009) as f32 / 504.0 - 1.0).collect() };
            let each = rule.columns == falcon_kernels::rule::Columns::Each;
            let w = if each { d } else { 1 };
            let q: Vec<f32> = num(t * d, 37).iter().map(|x| x * 0.1).collect();
            let k = num(t * d, 101);
            let v = num(t * d, 11);
            let g = vec![0.9f32; t * w];
            let l = vec![0.02f32; t];
            let inputs = Inputs {
                q: View::new(&q, [t, 1, d]).unwrap(), k: View::new(&k, [t, 1, d]).unwrap(), v: View::new(&v, [t, 1, d]).unwrap(),
                gain: Some(View::new(&g, [t, 1, w]).unwrap()), decay: Some(View::new(&l, [t, 1, 1]).unwrap()), offsets: &[0, t] };
            let call = Call::new(&rule, Form::CHUNKED, inputs).unwrap();
            let mut out = vec![0f32; t * d];
            let go = vec![1f32; t * d];
            let mut times = [[Vec::new(), Vec::new(), Vec::new()], [Vec::new(), Vec::new(), Vec::new()]];
            for _ in 0..5 {
                for (p, pool) in pools.iter().enumerate() {
                    pool.install(|| {
                        let s = Instant::now();
                        call.forward(&mut call.fresh_state(), &mut out).unwrap();
                        times[p][0].push(s.elapsed().as_secs_f64());
                        let s = Instant::now();
                        let tape = call.record(&mut call.fresh_state(), &mut out).unwrap();
                        times[p][1].push(s.elapsed().as_secs_f64());
                        let s = Instant::now();
                        tape.backward(&call, &go, None).unwrap();
                        times[p][2].push(s.elapsed().as_secs_f64());
                    });
                }
            }
            let med = |v: &mut Vec<f64>| { v.sort_by(f64::total_cmp); v[v.len() / 2] * 1e3 };
            let [a, b] = &mut times;
            for (i, name) in ["forward", "record", "backward"].iter().enumerate() {
                let (x, y) = (med(&mut a[i]), med(&mut b[i]));
                println!("d={d} window={} {:?} {:?} {name}: {x:.1} ms, {y:.1} ms: {:.2}x", rule.window, rule.objective, rule.columns, x / y);
            }
        }
    }
}
