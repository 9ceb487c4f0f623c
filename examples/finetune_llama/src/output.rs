//! The folders that a run writes: `adapters` and `merged`.
//!
//! Guarantees: a folder is replaced only when its successor is complete, and only if this program wrote all that is in
//! it. What a run reads is never replaced.
//!
//! 1. [`check`] refuses flags that would break this, before anything is computed.
//! 2. [`replace`] writes the successor of `NAME` within `NAME.new`, and swaps both by renaming them.
//! 3. Both folders list in [`LIST`] what this program writes into them, by which a later run recognises it.

use crate::error::FinetuneError;
use crate::options::Options;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file that lists what this program wrote beside it, one name a line.
const LIST: &str = "written_by_finetune_llama.txt";
/// What `NAME.new` holds: the successor, the same while it is exported, and what it replaces.
const PARTS: [&str; 3] = ["new", "new.partial", "old"];

/// Checks that all folders that these flags write can be replaced, and makes the folder around them.
///
/// # Errors
/// Returns a [`FinetuneError`] if the run reads one, if one holds what this program did not write, or if none can be
/// written.
pub(crate) fn check(options: &Options) -> Result<(), FinetuneError> {
    let base = options.base();
    let reads = [("--base", Some(&base)), ("--adapters", options.adapters.as_ref())];
    let writes = [("adapters", options.steps > 0), ("merged", options.merge)].into_iter().filter(|(_, writes)| *writes);
    let folders = writes.map(|(name, _)| options.out.join(name));
    for folder in folders.flat_map(|folder| [beside(&folder), folder]) {
        fs::create_dir_all(&options.out).map_err(FinetuneError::writing(&options.out))?;
        for (flag, read) in reads.iter().filter_map(|(flag, read)| Some((*flag, (*read)?))) {
            // A folder that does not exist holds nothing.
            if let (Ok(read), Ok(place)) = (read.canonicalize(), folder.canonicalize())
                && read.starts_with(place)
            {
                return Err(FinetuneError::Replaced { flag, folder });
            }
        }
        check_own(&folder)?;
    }
    Ok(())
}

/// Replaces a folder by what `export` writes into a new one.
///
/// # Errors
/// Returns a [`FinetuneError`] if `export` does, or the folder holds what this program did not write. It is then as it
/// was; in the latter case, `NAME.new` has what would have replaced it.
pub(crate) fn replace(
    folder: &Path,
    export: impl FnOnce(&Path) -> Result<(), FinetuneError>,
) -> Result<(), FinetuneError> {
    let beside = beside(folder);
    let [new, _, old] = PARTS.map(|part| beside.join(part));
    // A run that was stopped may have left it, perhaps between the two renames below.
    check_own(&beside)?;
    let complete = if new.join(LIST).exists() { &new } else { &old };
    if !folder.exists() && complete.exists() {
        fs::rename(complete, folder).map_err(FinetuneError::writing(folder))?;
    }
    removed(&beside)?;
    fs::create_dir_all(&beside).map_err(FinetuneError::writing(&beside))?;
    list(&beside, &PARTS.map(str::to_owned))?;
    let exported = export(&new).and_then(|()| list(&new, &names(&new)?));
    exported.inspect_err(|_| drop(removed(&beside)))?;
    check_own(folder)?;
    let renamed = |from: &Path, to: &Path| fs::rename(from, to).map_err(FinetuneError::writing(to));
    if folder.exists() {
        renamed(folder, &old)?;
    }
    renamed(&new, folder).inspect_err(|_| drop(renamed(&old, folder)))?;
    removed(&beside)
}

/// The folder in which a folder's successor is written: on the same file system.
fn beside(folder: &Path) -> PathBuf {
    folder.with_added_extension("new")
}

fn removed(folder: &Path) -> Result<(), FinetuneError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(FinetuneError::writing(folder)(error)),
        _ => Ok(()),
    }
}

fn list(folder: &Path, names: &[String]) -> Result<(), FinetuneError> {
    let path = folder.join(LIST);
    fs::write(&path, names.join("\n")).map_err(FinetuneError::writing(&path))
}

/// The names of all that is in a folder; none if it does not exist.
fn names(folder: &Path) -> Result<Vec<String>, FinetuneError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(FinetuneError::reading(folder))?,
    };
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    entries.map(|entry| entry.map(name).map_err(FinetuneError::reading(folder))).collect()
}

/// Refuses a folder that holds what its list does not name.
fn check_own(folder: &Path) -> Result<(), FinetuneError> {
    let listed = fs::read_to_string(folder.join(LIST)).unwrap_or_default();
    let own = |name: &str| name == LIST || listed.lines().any(|line| line == name);
    match names(folder)?.into_iter().find(|name| !own(name)) {
        Some(name) => Err(FinetuneError::NotOwn { folder: folder.to_owned(), name }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::tempdir;

    /// Writes a folder with one file.
    fn with(name: &'static str) -> impl FnOnce(&Path) -> Result<(), FinetuneError> {
        move |new| {
            fs::create_dir(new)?;
            Ok(fs::write(new.join(name), name)?)
        }
    }

    fn held(folder: &Path) -> Vec<String> {
        let mut held = names(folder).unwrap();
        held.sort();
        held
    }

    #[test]
    fn a_folder_is_replaced_when_the_new_one_is_complete_and_stays_if_it_is_not() {
        let out = tempdir().unwrap();
        let folder = out.path().join("merged");
        replace(&folder, with("a")).unwrap();
        replace(&folder, with("b")).unwrap();
        assert_eq!(held(&folder), ["b", LIST]);
        let failed = replace(&folder, |new| with("c")(new).and(Err(FinetuneError::NoPrompt)));
        assert!(matches!(failed, Err(FinetuneError::NoPrompt)));
        assert_eq!(
            (held(&folder), held(out.path())),
            (vec!["b".to_owned(), LIST.to_owned()], vec!["merged".to_owned()])
        );
        // What a run that was stopped left is removed.
        for part in PARTS {
            fs::create_dir_all(beside(&folder).join(part)).unwrap();
        }
        assert!(matches!(replace(&folder, with("d")), Err(FinetuneError::NotOwn { .. })), "nobody has listed them");
        list(&beside(&folder), &PARTS.map(str::to_owned)).unwrap();
        replace(&folder, with("d")).unwrap();
        assert_eq!(
            (held(&folder), held(out.path())),
            (vec!["d".to_owned(), LIST.to_owned()], vec!["merged".to_owned()])
        );
    }

    #[test]
    fn a_run_that_was_stopped_between_the_renames_loses_nothing() {
        let out = tempdir().unwrap();
        let folder = out.path().join("adapters");
        for (complete, kept) in [(true, "b"), (false, "a")] {
            drop(removed(&folder));
            replace(&folder, with("a")).unwrap();
            let [new, _, old] = PARTS.map(|part| beside(&folder).join(part));
            fs::create_dir_all(beside(&folder)).unwrap();
            list(&beside(&folder), &PARTS.map(str::to_owned)).unwrap();
            with("b")(&new).unwrap();
            if complete {
                list(&new, &["b".to_owned()]).unwrap();
            }
            fs::rename(&folder, &old).unwrap();
            // The next run fails.
            let failed = replace(&folder, |_| Err(FinetuneError::NoPrompt));
            assert!(matches!(failed, Err(FinetuneError::NoPrompt)));
            assert_eq!(held(&folder), [kept, LIST]);
        }
    }

    #[test]
    fn what_others_wrote_stays() {
        let out = tempdir().unwrap();
        let folder = out.path().join("adapters");
        replace(&folder, with("a")).unwrap();
        fs::write(folder.join("notes.txt"), "mine").unwrap();
        let refused = replace(&folder, with("b")).unwrap_err().to_string();
        assert!(refused.contains("adapters holds `notes.txt`") && refused.contains("another --out"), "{refused}");
        assert_eq!(held(&folder), ["a", "notes.txt", LIST]);
        assert_eq!(held(&beside(&folder).join("new")), ["b", LIST]);
    }
}
