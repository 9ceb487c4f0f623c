//! Which checkpoints are kept, their order, and what is refused.

use super::*;
use crate::train::progress::Progress;
use proptest::prelude::{Strategy, any};
use proptest::proptest;
use tempfile::tempdir;

fn manifest(steps: u64) -> Manifest {
    Manifest::new(Progress { steps, ..Progress::default() }, "null".to_owned(), "GPipe".to_owned(), 1)
}

fn names(folders: &[PathBuf]) -> Vec<String> {
    folders.iter().map(|folder| folder.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

/// The number of steps until the next save, and the checkpoint to which the job goes back first, if any.
fn history() -> impl Strategy<Value = Vec<(u64, Option<usize>)>> {
    proptest::collection::vec((1u64..4, proptest::option::weighted(0.3, any::<usize>())), 1..16)
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(12))]
    #[test]
    fn what_the_job_comes_from_is_kept_and_tried_before_what_it_went_back_from(
        history in history(), keep in 1usize..5,
    ) {
        let root = tempdir().unwrap();
        let all = Checkpoints::new(root.path().join("all"));
        let kept = Checkpoints::new(root.path().join("kept")).keep(keep);
        let (mut first, mut second) = (Branch::default(), Branch::default());
        // Each checkpoint with its steps and the one that it follows.
        let mut known: Vec<(PathBuf, u64, Option<usize>)> = Vec::new();
        let mut at: Option<usize> = None;
        for (steps, back) in history {
            if let Some(to) = back.filter(|_| !known.is_empty()) {
                let to = to % known.len();
                let serial = Manifest::read(&known[to].0).unwrap().serial;
                first.goes_on_from(&known[to].0, serial);
                // The other folder has the same numbers, and may have removed it since.
                second.goes_on_from(&kept.root.join(known[to].0.file_name().unwrap()), serial);
                at = Some(to);
            }
            let steps = steps + at.map_or(0, |at| known[at].1);
            let saved = all.begin(steps, &mut first).unwrap().commit(manifest(steps), &mut first).unwrap();
            kept.begin(steps, &mut second).unwrap().commit(manifest(steps), &mut second).unwrap();
            known.push((saved, steps, at));
            at = Some(known.len() - 1);
            let mut branch: Vec<PathBuf> = Vec::new();
            let mut next = at;
            while let Some(place) = next {
                branch.insert(0, known[place].0.clone());
                next = known[place].2;
            }
            let mut expected: Vec<PathBuf> =
                known.iter().map(|(folder, ..)| folder.clone()).filter(|folder| !branch.contains(folder)).collect();
            expected.append(&mut branch);
            let latest = fs::read_to_string(all.root.join(LATEST)).unwrap();
            assert_eq!(all.by_worth(&latest).unwrap(), expected);
            assert_eq!(all.all().unwrap().last(), expected.last());
            let latest = kept.latest_intact().unwrap();
            assert_eq!(latest.progress().steps, steps);
            assert_eq!(kept.all().unwrap().len(), keep.min(known.len()));
        }
    }
}

#[test]
fn where_the_latest_is_gone_or_damaged_what_it_came_from_is_next() {
    let root = tempdir().unwrap();
    let (checkpoints, mut job) = (Checkpoints::new(root.path()), Branch::default());
    let save = |steps, job: &mut Branch| checkpoints.begin(steps, job).unwrap().commit(manifest(steps), job).unwrap();
    let good = save(400, &mut job);
    save(500, &mut job);
    job.goes_on_from(&good, 1);
    let latest = save(450, &mut job);
    fs::write(latest.join("manifest.json"), "{").unwrap();
    assert_eq!(checkpoints.latest_intact().unwrap().folder(), good);
    fs::remove_dir_all(&latest).unwrap();
    assert_eq!(checkpoints.latest_intact().unwrap().folder(), good);
    fs::remove_dir_all(&good).unwrap();
    assert_eq!(checkpoints.latest_intact().unwrap().progress().steps, 500);
    assert!(checkpoints.latest().unwrap_err().to_string().contains("latest_intact"));
}

#[test]
fn a_name_that_leads_out_of_the_folder_is_refused() {
    let checkpoints = Checkpoints::new("job");
    for name in ["../step-00000001", "/step-00000001", "step-00000001/..", "", ".", "step-1", "step-00000001-1"] {
        let error = checkpoints.join(name.to_owned()).unwrap_err().to_string();
        assert!(error.starts_with("rank 0: it named"), "{error}");
    }
    for name in ["step-00000001", "step-00000001-2", "step-123456789"] {
        assert_eq!(checkpoints.join(name.to_owned()).unwrap().name, name);
    }
}

#[test]
fn a_checkpoint_that_cannot_be_removed_fails_no_save() {
    let root = tempdir().unwrap();
    let (checkpoints, mut job) = (Checkpoints::new(root.path()).keep(1), Branch::default());
    checkpoints.begin(1, &mut job).unwrap().commit(manifest(1), &mut job).unwrap();
    // A non-empty folder makes the rename fail.
    let staging = checkpoints.begin(2, &mut job).unwrap();
    fs::create_dir_all(root.path().join("step-00000001.partial/held")).unwrap();
    staging.commit(manifest(2), &mut job).unwrap();
    assert_eq!(names(&checkpoints.all().unwrap()), ["step-00000001", "step-00000002"]);
    checkpoints.begin(3, &mut job).unwrap().commit(manifest(3), &mut job).unwrap();
    assert_eq!(names(&checkpoints.all().unwrap()), ["step-00000003"]);
}

#[test]
fn only_one_save_at_a_time_goes_into_a_folder() {
    let root = tempdir().unwrap();
    let (checkpoints, mut one, mut other) = (Checkpoints::new(root.path()), Branch::default(), Branch::default());
    let first = checkpoints.begin(1, &mut one).unwrap();
    let error = checkpoints.begin(1, &mut other).unwrap_err().to_string();
    assert!(error.contains("another pipeline of this process"), "{error}");
    first.commit(manifest(1), &mut one).unwrap();
    let error = checkpoints.begin(1, &mut other).unwrap_err().to_string();
    assert!(error.contains("none of whose checkpoints were loaded"), "{error}");
    let loaded = checkpoints.latest().unwrap();
    other.has_read(loaded.folder());
    checkpoints.begin(1, &mut other).unwrap().commit(manifest(1), &mut other).unwrap();
    assert_eq!(names(&checkpoints.all().unwrap()), ["step-00000001", "step-00000001-2"]);
}
