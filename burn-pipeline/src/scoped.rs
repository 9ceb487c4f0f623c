//! A value of the thread while a function runs.

use std::cell::RefCell;
use std::thread::LocalKey;

/// Sets a value of this thread while a function runs, and puts the one before it back, even after a panic. Also
/// returns the value as the function left it.
pub(crate) fn scoped<T: Default, R>(key: &'static LocalKey<RefCell<T>>, value: T, run: impl FnOnce() -> R) -> (R, T) {
    struct Outer<T: Default + 'static>(&'static LocalKey<RefCell<T>>, T);

    impl<T: Default> Drop for Outer<T> {
        fn drop(&mut self) {
            self.0.replace(std::mem::take(&mut self.1));
        }
    }

    let _outer = Outer(key, key.replace(value));
    let given = run();
    (given, key.take())
}
