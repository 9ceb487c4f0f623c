//! Several virtual machines on this one, each with its own network, host name, processes and shared memory, joined
//! by a switch.
//!
//! Guarantees: machines reach each other only over their own addresses. A cable can be pulled, which silences a
//! machine without closing a connection. Nothing is visible from outside, and everything ends with the process that
//! started it, however that ends.
//!
//! 1. A machine is a set of kernel namespaces held by one process (`unshare`), which is killed with its parent.
//! 2. The switch is one more machine: a bridge with a cable (`veth`) to each of the others.
//! 3. `nsenter` starts programs on a machine. With `ssh`, each machine runs an `sshd` that accepts a key made for
//!    this run, so `mpirun` starts its ranks as on real machines.
//!
//! Needs root and the programs of Debian's packages `iproute2`, `util-linux` and, for `ssh`, `openssh-server`.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::{TempDir, tempdir};

/// How long a machine may take to start.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Machines that reach each other. Dropping this ends them.
#[derive(Debug)]
pub struct Machines {
    switch: Machine,
    machines: Vec<Machine>,
    folder: TempDir,
}

/// The process that holds a machine's namespaces, and the first process inside.
#[derive(Debug)]
struct Machine {
    holder: Child,
    first: u32,
}

impl Machines {
    /// Starts `count` machines.
    ///
    /// # Panics
    /// If this process lacks the rights, or a program is missing.
    pub fn start(count: usize) -> Self {
        Self::with(count, |_| "exec sleep infinity".to_owned())
    }

    /// Like [`Machines::start`], with an `sshd` on each machine that admits the others.
    ///
    /// # Panics
    /// As [`Machines::start`].
    pub fn start_with_ssh(count: usize) -> Self {
        let machines = Self::with(count, |folder| {
            let folder = folder.display();
            let key = format!("ssh-keygen -q -t ed25519 -N '' -f {folder}/key");
            assert!(sh(&key).status().is_ok_and(|status| status.success()), "{key}");
            // Ends an `ssh` to a machine that no longer responds.
            let client =
                "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\nServerAliveInterval 3";
            fs::write(format!("{folder}/ssh_config"), format!("IdentityFile {folder}/key\n{client}\n")).unwrap();
            let server = "StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\nLogLevel ERROR";
            let keys = format!("HostKey {folder}/key\nAuthorizedKeysFile {folder}/key.pub\n{server}\n");
            fs::write(format!("{folder}/sshd_config"), keys).unwrap();
            format!("mkdir -p /run/sshd; exec /usr/sbin/sshd -D -e -f {folder}/sshd_config")
        });
        for machine in 0..count {
            machines.wait_for_ssh(machine);
        }
        machines
    }

    fn with(count: usize, then: impl FnOnce(&Path) -> String) -> Self {
        let folder = tempdir().unwrap();
        let then = then(folder.path());
        let mut machines =
            Self { switch: Machine::start("switch", "exec sleep infinity"), machines: Vec::new(), folder };
        machines.switch.ip("link add name switch0 type bridge");
        machines.switch.ip("link set switch0 up");
        for number in 0..count {
            let machine = Machine::start(&format!("machine{number}"), &then);
            let first = machine.first;
            machines.switch.ip(&format!("link add name port{number} type veth peer name eth0 netns {first}"));
            machines.switch.ip(&format!("link set port{number} master switch0 up"));
            machine.ip("link set lo up");
            machine.ip(&format!("addr add {}/24 dev eth0", address(number)));
            machine.ip("link set eth0 up");
            machines.machines.push(machine);
        }
        machines
    }

    /// The address at which the others reach a machine.
    pub fn address(&self, machine: usize) -> String {
        address(machine)
    }

    /// A command that runs a program on a machine.
    pub fn command(&self, machine: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.machines[machine].first.to_string(), "--all", "--"]).arg(program);
        // Makes `mpirun` use the machines' `ssh`; ignored where they have none.
        command.env("OMPI_MCA_plm_rsh_args", format!("-F {}", self.folder.path().join("ssh_config").display()));
        // Machines of other tests may have equal names and process numbers, and so equal file names.
        command.env("OMPI_MCA_orte_tmpdir_base", self.folder.path());
        command
    }

    /// Writes a host file for `mpirun` with `slots` ranks on each machine.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn hostfile(&self, slots: usize) -> PathBuf {
        let path = self.folder.path().join("hosts");
        let line = |machine| format!("{} slots={slots}\n", address(machine));
        fs::write(&path, (0..self.machines.len()).map(line).collect::<String>()).unwrap();
        path
    }

    /// Pulls a machine's cable: nothing reaches or leaves it any more, and no connection is closed.
    ///
    /// # Panics
    /// If it cannot be pulled.
    pub fn unplug(&self, machine: usize) {
        self.switch.ip(&format!("link set port{machine} down"));
    }

    /// Ends a machine with all its processes. Its connections close as those of killed processes do; unplug it
    /// first to simulate a loss of power.
    ///
    /// # Panics
    /// If it cannot be ended.
    pub fn end(&mut self, machine: usize) {
        self.machines[machine].end();
    }

    /// The command lines of a machine's processes that have this argument.
    pub fn processes(&self, machine: usize, argument: &str) -> Vec<String> {
        self.machines[machine].processes(argument)
    }

    /// The files in a machine's shared memory.
    ///
    /// # Panics
    /// If the machine has ended.
    pub fn shared_memory(&self, machine: usize) -> Vec<String> {
        let folder = format!("/proc/{}/root/dev/shm", self.machines[machine].first);
        let files = fs::read_dir(folder).unwrap().flatten();
        files.map(|file| file.file_name().to_string_lossy().into_owned()).collect()
    }

    fn wait_for_ssh(&self, machine: usize) {
        let since = Instant::now();
        loop {
            let mut ssh = self.command(machine, "ssh");
            ssh.arg("-F").arg(self.folder.path().join("ssh_config")).args(["127.0.0.1", "true"]).stderr(Stdio::null());
            if ssh.status().is_ok_and(|status| status.success()) {
                return;
            }
            assert!(since.elapsed() < TIMEOUT, "sshd of machine {machine} accepts no connection");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.machines.iter_mut().for_each(Machine::end);
        self.switch.end();
    }
}

impl Machine {
    /// Starts a machine that runs `then` in a shell.
    fn start(name: &str, then: &str) -> Self {
        let own = "mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs /run";
        let script = format!("hostname {name} && {own} && echo ready && {{ {then}; }}");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--net", "--uts", "--ipc", "--mount", "--pid"]);
        command.args(["--fork", "--kill-child", "--mount-proc", "sh", "-c", &script]);
        let mut holder = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "machines need root, and the programs `unshare` and `setpriv`");
        let children = format!("/proc/{0}/task/{0}/children", holder.id());
        let first = fs::read_to_string(children).unwrap().trim().parse().unwrap();
        Self { holder, first }
    }

    /// Runs `ip` inside.
    fn ip(&self, arguments: &str) {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first.to_string(), "--net", "ip"]).args(arguments.split(' '));
        assert!(command.status().is_ok_and(|status| status.success()), "ip {arguments}");
    }

    fn processes(&self, argument: &str) -> Vec<String> {
        let space = |process: &str| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
        let Some(own) = space(&self.first.to_string()) else { return Vec::new() };
        let all =
            fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let within = all.filter(|process| space(process).as_ref() == Some(&own));
        let lines = within.filter_map(|process| fs::read_to_string(format!("/proc/{process}/cmdline")).ok());
        lines.filter(|line| line.split('\0').any(|word| word == argument)).map(|line| line.replace('\0', " ")).collect()
    }

    fn end(&mut self) {
        // Either may have ended already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        let since = Instant::now();
        // The kernel ends all other processes with the first one; that takes a moment.
        while Path::new(&format!("/proc/{}", self.first)).exists() && since.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn address(machine: usize) -> String {
    format!("10.77.0.{}", machine + 1)
}

fn sh(line: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", line]);
    command
}
