//! Strings that many records share.

use std::collections::HashMap;

use drover_core::Sym;
use parking_lot::Mutex;

/// Above this many strings, new ones are not interned: names come from outside and must not fill the memory.
const MAX_INTERNED: usize = 100_000;

/// Interner: strings that many records share are kept once.
#[derive(Debug, Default)]
pub struct Interner(Mutex<HashMap<Box<str>, Sym>>);

impl Interner {
    /// The shared form of a text.
    pub fn get(&self, text: &str) -> Sym {
        if text.is_empty() {
            return Sym::default();
        }
        let mut known = self.0.lock();
        if let Some(sym) = known.get(text) {
            return sym.clone();
        }
        let sym: Sym = text.into();
        if known.len() < MAX_INTERNED {
            known.insert(text.into(), sym.clone());
        }
        sym
    }

    /// Like `get`, but first compares with a likely candidate: nodes that are stored together have most strings in
    /// common.
    pub(super) fn like(&self, text: &str, likely: Option<&Sym>) -> Sym {
        match likely {
            Some(likely) if **likely == *text => likely.clone(),
            _ => self.get(text),
        }
    }
}
