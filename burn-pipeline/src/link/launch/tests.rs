//! Environments of launchers.

use super::*;

fn launch(variables: &[(&str, &str)]) -> Result<Option<Launch>, LaunchError> {
    Launch::from_variables(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
}

#[test]
fn each_launcher_is_known_by_its_variables() {
    for launcher in Launcher::ALL {
        let [rank, ranks, local] = launcher.variables();
        let found = launch(&[(rank, "5"), (ranks, "8"), (local, "2"), ("SLURM_STEP_ID", "0")]).unwrap().unwrap();
        assert_eq!(
            found,
            Launch { launcher, rank: 5, ranks: 8, local_rank: 2, master: None, admission: Admission::ThisMachine }
        );
    }
    assert_eq!(launch(&[("HOME", "/root")]), Ok(None));
}

#[test]
fn mpirun_inside_a_slurm_job_counts_before_slurm() {
    let both = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "1"),
        ("SLURM_STEP_ID", "0"),
        ("RANK", "7"),
        ("WORLD_SIZE", "9"),
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
    ];
    let found = launch(&both).unwrap().unwrap();
    assert_eq!((found.launcher, found.rank, found.ranks, found.local_rank), (Launcher::OpenMpi, 1, 4, 0));
}

#[test]
fn torchrun_says_where_rank_0_is() {
    let variables = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")];
    assert_eq!(launch(&variables).unwrap().unwrap().master, Some(("node7".to_owned(), 29500)));
}

fn master(variables: &[(&str, &str)]) -> Option<(String, u16)> {
    launch(variables).unwrap().unwrap().master
}

#[test]
fn slurm_names_the_machines() {
    let of = |nodes: &str| {
        let secret = ("BURN_PIPELINE_SECRET", "0123456789abcdef");
        let job = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "7012")];
        master(&[&job[..], &[("SLURM_STEP_NODELIST", nodes), secret]].concat()).unwrap()
    };
    assert_eq!(of("gpu[07-09,12],cpu1"), ("gpu07".to_owned(), 29512));
    assert_eq!(of("a1,b[2-3]").0, "a1");
    assert_eq!(of("n[3,5]-ib").0, "n3-ib");
    assert_eq!(of("single").0, "single");
}

#[test]
fn ranks_of_one_machine_need_no_address_and_others_do() {
    let local = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
    assert_eq!(master(&local), Some(("127.0.0.1".to_owned(), 29500)));
    let spread = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
    assert_eq!(launch(&spread).unwrap().unwrap().rendezvous(), Err(LaunchError::NoRendezvous));
    // Only the list of machines tells where Slurm placed the tasks.
    let spread = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_NTASKS_PER_NODE", "4(x2)")];
    assert_eq!(master(&spread), None);
}

#[test]
fn the_port_of_torchruns_own_store_is_left_alone() {
    let base = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")];
    let store = [&base[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
    assert_eq!(master(&store), Some(("node7".to_owned(), 29501)));
    let rendezvous = launch(&base).unwrap().unwrap().rendezvous().unwrap();
    assert_eq!(
        rendezvous,
        Rendezvous { rank: 0, ranks: 2, address: ("node7".to_owned(), 29500), admission: Admission::ThisMachine }
    );
    let odd = [&base[..3], &[("MASTER_PORT", "70000")]].concat();
    assert_eq!(launch(&odd), Err(LaunchError::Port { port: 70000 }));
}

#[test]
fn a_batch_script_of_slurms_was_not_started_as_a_rank() {
    let script = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_NODELIST", "a1")];
    assert_eq!(launch(&script), Ok(None));
    // A step of the job may have fewer processes than the job has room for.
    let step = [&script[..], &[("SLURM_STEP_ID", "3"), ("SLURM_STEP_NUM_TASKS", "2")]].concat();
    let found = launch(&step).unwrap().unwrap();
    assert_eq!((found.launcher, found.rank, found.ranks), (Launcher::Slurm, 0, 2));
    // All of them are on one machine, and nobody else may join.
    assert_eq!(found.master, Some(("127.0.0.1".to_owned(), 29507)));
    // Slurm's PMI also sets variables of MPICH's; processes that torchrun starts inherit them.
    let pmi = [&step[..], &[("PMI_RANK", "0"), ("PMI_SIZE", "2")]].concat();
    let found = launch(&pmi).unwrap().unwrap();
    assert_eq!((found.launcher, found.rank, found.ranks, found.local_rank), (Launcher::Slurm, 0, 2, 0));
    let torchrun = [&pmi[..], &[("RANK", "3"), ("WORLD_SIZE", "16"), ("LOCAL_RANK", "1")]].concat();
    let found = launch(&torchrun).unwrap().unwrap();
    assert_eq!((found.launcher, found.rank, found.ranks, found.local_rank), (Launcher::Torchrun, 3, 16, 1));
    // torchrun in a step: its own variables count.
    let torchrun = [&step[..], &[("RANK", "3"), ("WORLD_SIZE", "16"), ("LOCAL_RANK", "1")]].concat();
    let found = launch(&torchrun).unwrap().unwrap();
    assert_eq!((found.launcher, found.rank, found.ranks, found.local_rank), (Launcher::Torchrun, 3, 16, 1));
}

#[test]
fn whatever_of_a_launchers_variables_is_no_number_is_named() {
    for launcher in Launcher::ALL {
        let names = launcher.variables();
        let sound = |name: &'static str| (name, if name == names[1] { "8" } else { "2" });
        let all = [sound(names[0]), sound(names[1]), sound(names[2]), ("SLURM_STEP_ID", "0"), ("MASTER_PORT", "1")];
        assert!(launch(&all).is_ok());
        for odd in [names[0], names[1], names[2], "MASTER_PORT"] {
            for value in ["", " 1", "-1", "1.0", "two", "99999999999999999999999"] {
                let changed = all.map(|(name, sound)| (name, if name == odd { value } else { sound }));
                let error = launch(&changed).unwrap_err();
                assert!(matches!(error, LaunchError::NotANumber { variable, .. } if variable == odd), "{error}");
                assert!(error.to_string().starts_with(&format!("{odd}={value} is not a number")), "{error}");
            }
        }
        let alone = [(names[0], "0"), ("SLURM_STEP_ID", "0")];
        let alone = if launcher == Launcher::Slurm { &alone[..] } else { &alone[..1] };
        assert_eq!(launch(alone), Err(LaunchError::Missing { there: names[0], missing: names[1] }));
    }
}

#[test]
fn an_empty_address_is_none() {
    let by_hand = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", " "), ("MASTER_PORT", "9")];
    assert_eq!(launch(&by_hand).unwrap().unwrap().rendezvous(), Err(LaunchError::NoRendezvous));
    assert_eq!(master(&[&by_hand[..], &[("LOCAL_WORLD_SIZE", "2")]].concat()), Some(("127.0.0.1".to_owned(), 9)));
}

#[test]
fn variables_that_make_no_sense_are_named() {
    let said = |variables: &[(&str, &str)]| launch(variables).unwrap_err().to_string();
    let no_port = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "0")];
    assert_eq!(said(&no_port), "MASTER_PORT=0 is not a port; choose one from 1 to 65535");
    assert!(said(&[("RANK", "first"), ("WORLD_SIZE", "2")]).contains("RANK=first is not a number"));
    assert_eq!(said(&[("RANK", "1")]), "RANK is set, but WORLD_SIZE is not");
    assert_eq!(said(&[("RANK", "2"), ("WORLD_SIZE", "2")]), "rank 2 is not one of 2 rank(s), counted from 0");
}

#[test]
fn the_secret_is_the_users_or_the_launchers_and_is_never_shown() {
    let admission = |variables: &[(&str, &str)]| launch(variables).unwrap().unwrap().admission;
    let secret = |text: &str| Admission::Secret(Secret::new(text));
    let (key, of_job) = ("7c5f1d6fe9a80b44-5c29f1e02a6c3d17", "000000000000f1a2-0000000000000001");
    let mpirun =
        [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1"), ("OMPI_MCA_orte_precondition_transports", key)];
    assert_eq!(admission(&mpirun), secret(key));
    let mine = "a secret of mine";
    assert_eq!(admission(&[&mpirun[..], &[("BURN_PIPELINE_SECRET", mine)]].concat()), secret(mine));
    // Under `srun` the key follows from the job's number, which everybody can see.
    assert_eq!(admission(&[&mpirun[..2], &[(mpirun[2].0, of_job)]].concat()), Admission::ThisMachine);
    // Another launcher's variables may be inherited from the shell that it started.
    let torchrun = [("RANK", "0"), ("WORLD_SIZE", "1"), mpirun[2]];
    assert_eq!(admission(&torchrun), Admission::ThisMachine);
    assert_eq!(format!("{:?}", secret("mine")), "Secret(Secret(..))");
}

#[test]
fn a_secret_that_is_as_good_as_none_is_an_error() {
    let of = |secret: &str| launch(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("BURN_PIPELINE_SECRET", secret)]);
    for blank in ["", " ", "\t\n", "                          "] {
        assert_eq!(of(blank), Err(LaunchError::Secret { bytes: blank.len(), blank: true }));
    }
    assert_eq!(of("hunter2"), Err(LaunchError::Secret { bytes: 7, blank: false }));
    assert!(of("hunter2").unwrap_err().to_string().contains("openssl rand -hex 32"));
    assert!(of("0123456789abcdef").is_ok());
}

#[cfg(unix)]
#[test]
fn a_secret_may_be_any_bytes_and_other_variables_must_be_texts() {
    use std::os::unix::ffi::OsStringExt;
    let bytes = [&b"0123456789abcdef"[..], &[0xff; 16]].concat();
    let with = |odd: &'static str| {
        let (sound, bytes) =
            ([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node7"), ("MASTER_PORT", "9")], &bytes);
        Launch::from_variables(move |name| match name == odd {
            true => Some(OsString::from_vec(bytes.clone())),
            false => sound.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value)),
        })
    };
    let admission = with("BURN_PIPELINE_SECRET").unwrap().unwrap().admission;
    assert_eq!(admission, Admission::Secret(Secret::new(bytes.clone())));
    for number in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"] {
        let error = with(number).unwrap_err();
        assert!(matches!(error, LaunchError::NotANumber { variable, .. } if variable == number), "{error}");
    }
    assert_eq!(with("MASTER_ADDR"), Err(LaunchError::NotText { variable: "MASTER_ADDR" }));
}

#[test]
fn ranks_of_one_machine_meet_on_its_loopback_address_whatever_its_name() {
    let local = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.7"), ("MASTER_PORT", "9")];
    let here = [&local[..], &[("LOCAL_WORLD_SIZE", "2")]].concat();
    assert_eq!(master(&here), Some(("127.0.0.1".to_owned(), 9)));
    // Not if others may join, nor if some ranks are elsewhere.
    let named = Some(("192.0.2.7".to_owned(), 9));
    assert_eq!(master(&[&here[..], &[("BURN_PIPELINE_SECRET", "0123456789abcdef")]].concat()), named);
    assert_eq!(master(&[&local[..], &[("LOCAL_WORLD_SIZE", "1")]].concat()), named);
    let slurm = |nodes| {
        let step = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_STEP_NODELIST", nodes)];
        // The job allows as many tasks on one machine as the step has, wherever these are.
        let allowed = [&step[..], &[("SLURM_NTASKS_PER_NODE", "4")]].concat();
        [&step[..], &allowed].map(|step| master(step).unwrap().0)
    };
    assert_eq!(["node-7", "n[1-2]", "a,b"].map(slurm), [["127.0.0.1"; 2], ["n1"; 2], ["a"; 2]]);
}
