//! Messages concurrent with computation.
//!
//! 1. Rank 0 computes matmuls and sends rank 1 messages that do not depend on them: matmuls alone, messages alone,
//!    and both. Rank 1 answers when all messages have arrived.
//! 2. The matmuls' time is the device's, between two events ([`Device::profile`]); the other times are the host's,
//!    from the first call to the answer.
//! 3. The hidden part is the fraction of the shorter time by which both together take less than the sum of both.

use crate::hop::{payload, receive, send};
use crate::link;
use crate::samples::spread;
use burn::tensor::{Device, Distribution, Tensor};
use burn_pipeline::link::{Launch, Link};
use burn_pipeline_nccl::{NcclLink, Ordering};
use std::time::Instant;

const PRODUCTS: usize = 20;
const MESSAGES: usize = 20;
const WARM_UP: usize = 2;

/// The side of the matrices, the bytes of a message, and the rounds that count; few with `QUICK=1`.
fn sizes() -> (usize, usize, usize) {
    if std::env::var_os("QUICK").is_some() { (16, 1 << 10, 1) } else { (4096, 64 << 20, 7) }
}

/// The device's seconds for the matmuls, if requested, and the host's seconds until everything has ended.
fn round(link: &mut NcclLink, device: &Device, matrix: &Tensor<2>, products: bool, messages: bool) -> [f64; 2] {
    let (began, (_, bytes, _)) = (Instant::now(), sizes());
    if messages {
        (0..MESSAGES).for_each(|_| send(link, payload(bytes, device)));
    }
    let computed = products.then(|| {
        let body = || {
            let mut value = matrix.clone();
            for _ in 0..PRODUCTS {
                value = value.matmul(matrix.clone());
            }
            value
        };
        device.profile(body).unwrap()
    });
    let on_device = computed.map_or(0.0, |(value, took)| {
        device.sync().unwrap();
        drop(value);
        burn::tensor::try_read_sync(took.resolve()).flatten().unwrap().duration().as_secs_f64()
    });
    if messages {
        drop(receive(link));
    }
    [on_device, began.elapsed().as_secs_f64()]
}

pub(crate) fn measure(launch: &Launch) {
    let (side, _, rounds) = sizes();
    for (ordering, high_priority, name) in [
        (Ordering::Host, false, "waits on the host"),
        (Ordering::Device, false, "waits on the device"),
        (Ordering::Device, true, "waits on the device, high priority"),
    ] {
        let (mut link, device) = link(launch, ordering, high_priority);
        let matrix = Tensor::<2>::random([side, side], Distribution::Uniform(-0.01, 0.01), &device);
        let mut seconds: [[Vec<f64>; 2]; 3] = Default::default();
        for count in 0..rounds + WARM_UP {
            for (place, (products, messages)) in [(true, false), (false, true), (true, true)].into_iter().enumerate() {
                if launch.rank == 1 {
                    if messages {
                        (0..MESSAGES).for_each(|_| drop(receive(&mut link)));
                        send(&mut link, payload(4, &device));
                    }
                    continue;
                }
                let took = round(&mut link, &device, &matrix, products, messages);
                if count >= WARM_UP {
                    seconds[place].iter_mut().zip(took).for_each(|(all, took)| all.push(took));
                }
            }
        }
        if launch.rank == 0 {
            report(name, &seconds);
        }
        link.barrier(Instant::now() + crate::TIMEOUT).unwrap();
    }
}

fn report(name: &str, [products, messages, both]: &[[Vec<f64>; 2]; 3]) {
    let (side, bytes, _) = sizes();
    let median = |seconds: &[f64]| crate::samples::quantile(seconds, 0.5);
    let [a, b, c] = [products, messages, both].map(|[_, host]| median(host));
    println!("ordered by {name}; ms, median (10%..90%)");
    println!("| {PRODUCTS} matmuls of {side}x{side}, on the device | with the messages |");
    println!("|---|---|");
    println!("| {} | {} |", spread(&products[0], 1e3, 2), spread(&both[0], 1e3, 2));
    println!("| on the host: matmuls | {MESSAGES} messages of {bytes} bytes | both | hidden of the shorter |");
    println!("|---|---|---|---|");
    let hidden = 100.0 * (a + b - c).max(0.0) / a.min(b);
    println!(
        "| {} | {} | {} | {hidden:.0} % |\n",
        spread(&products[1], 1e3, 2),
        spread(&messages[1], 1e3, 2),
        spread(&both[1], 1e3, 2)
    );
}
