//! A cache that forgets everything rather than growing past its bound.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Remembers values that can be made again, up to a total weight in bytes.
pub(super) struct BoundedCache<T: ?Sized> {
    bound: usize,
    state: Mutex<State<T>>,
}

struct State<T: ?Sized> {
    weight: usize,
    values: FxHashMap<u32, Arc<T>>,
}

impl<T: ?Sized> BoundedCache<T> {
    /// An empty cache that holds `bound` bytes at most.
    pub(super) fn new(bound: usize) -> Self {
        Self {
            bound,
            state: Mutex::new(State {
                weight: 0,
                values: FxHashMap::default(),
            }),
        }
    }

    /// The value under `key`.
    pub(super) fn get(&self, key: u32) -> Option<Arc<T>> {
        self.state.lock().values.get(&key).cloned()
    }

    /// Keeps a value of `weight` bytes, dropping all others where the bound would be passed.
    pub(super) fn insert(&self, key: u32, value: Arc<T>, weight: usize) {
        let mut state = self.state.lock();
        if state.values.contains_key(&key) {
            return;
        }
        if state.weight + weight > self.bound {
            state.values.clear();
            state.weight = 0;
        }
        state.weight += weight;
        state.values.insert(key, value);
    }
}
