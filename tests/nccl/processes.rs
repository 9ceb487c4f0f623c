//! Ranks as processes of this test program, several of them on one GPU.
//!
//! NCCL refuses two ranks of one machine on one GPU. With its own name (`NCCL_HOSTID`), each process counts as a
//! machine; they communicate over sockets on the loopback interface. The other variables disable what does not work
//! between ranks that share a GPU, or takes too many of its processors.

use std::io::{BufRead, BufReader, PipeReader, Read, pipe};
use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The time limit of a test's processes.
const LIMIT: Duration = Duration::from_secs(300);

const SHARED_GPU: &[(&str, &str)] = &[
    ("NCCL_NET", "Socket"),
    ("NCCL_SOCKET_IFNAME", "lo"),
    ("NCCL_IB_DISABLE", "1"),
    ("NCCL_NET_PLUGIN", "none"),
    ("NCCL_P2P_DISABLE", "1"),
    ("NCCL_SHM_DISABLE", "1"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("NCCL_MNNVL_ENABLE", "0"),
    ("NCCL_CUMEM_ENABLE", "0"),
    ("NCCL_CUMEM_HOST_ENABLE", "0"),
    ("NCCL_RAS_ENABLE", "0"),
    ("NCCL_MAX_CTAS", "2"),
];

/// Processes that are killed when dropped.
pub(crate) struct Processes {
    children: Vec<Child>,
    outs: Vec<BufReader<PipeReader>>,
    read: Vec<String>,
}

impl Processes {
    pub(crate) fn start(ranks: usize, part: &str, more: &[(&str, &str)]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let start = |rank: usize| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "a_rank", "--ignored", "--nocapture", "--test-threads", "1"]);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            command.env("LOCAL_RANK", rank.to_string()).env("PART", part);
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
            command.env_remove("TORCHELASTIC_USE_AGENT_STORE").env("NCCL_HOSTID", format!("pipeline-{rank}"));
            command.envs(SHARED_GPU.iter().copied()).envs(more.iter().copied());
            let (reader, writer) = pipe().unwrap();
            let child = command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
            (child, BufReader::new(reader))
        };
        let (children, outs) = (0..ranks).map(start).unzip();
        Self { children, outs, read: vec![String::new(); ranks] }
    }

    /// Kills a rank after some steps.
    pub(crate) fn kill_after_steps(&mut self, rank: usize) {
        let mut line = String::new();
        while !line.starts_with("step 3 ") {
            line.clear();
            assert!(self.outs[rank].read_line(&mut line).unwrap() > 0, "rank {rank} has ended");
        }
        self.children[rank].kill().unwrap();
    }

    /// Waits for all ranks. Returns for each whether it passed, and its output.
    pub(crate) fn end(mut self) -> Vec<(bool, String)> {
        let began = Instant::now();
        for (rank, out) in self.outs.drain(..).enumerate() {
            let read = std::thread::spawn(move || {
                let (mut out, mut text) = (out, String::new());
                out.read_to_string(&mut text).unwrap();
                text
            });
            while !read.is_finished() {
                if began.elapsed() > LIMIT {
                    self.children.iter_mut().for_each(|child| drop(child.kill()));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            self.read[rank] = read.join().unwrap();
        }
        let passed: Vec<bool> = self.children.iter_mut().map(|child| child.wait().unwrap().success()).collect();
        passed.into_iter().zip(std::mem::take(&mut self.read)).collect()
    }

    /// The ranks' output until the first one fails, or all end.
    pub(crate) fn end_with_the_first(mut self, limit: Duration) -> String {
        let began = Instant::now();
        loop {
            let ended = self.children.iter_mut().map(|child| child.try_wait().unwrap()).collect::<Vec<_>>();
            if ended.iter().flatten().any(|status| !status.success()) || ended.iter().all(Option::is_some) {
                break;
            }
            assert!(began.elapsed() < limit, "no rank has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.children.iter_mut().for_each(|child| drop(child.kill()));
        self.end().into_iter().map(|(_, text)| text).collect()
    }

    pub(crate) fn all_pass(self) {
        let failed = self.end().into_iter().enumerate().filter(|(_, (passed, _))| !passed);
        let texts: Vec<String> = failed.map(|(rank, (_, text))| format!("rank {rank} failed: {text}")).collect();
        assert!(texts.is_empty(), "{}", texts.join("\n"));
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
