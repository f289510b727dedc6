//! XML responses.

use std::fmt::{Display, Write};

use crate::ec2::model::Tags;

/// An XML writer.
#[derive(Default)]
pub(crate) struct Xml(String);

impl Xml {
    pub(crate) fn new() -> Xml {
        Xml::default()
    }

    pub(crate) fn open(&mut self, name: &str) {
        self.0.push('<');
        self.0.push_str(name);
        self.0.push('>');
    }

    pub(crate) fn close(&mut self, name: &str) {
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push('>');
    }

    /// Creates an empty writer with this capacity.
    pub(crate) fn with_room(bytes: usize) -> Xml {
        Xml(String::with_capacity(bytes))
    }

    /// Writes an element whose text needs no escaping: faster, and most texts are ids and names of the API.
    pub(crate) fn plain(&mut self, name: &str, text: &str) {
        self.open(name);
        self.0.push_str(text);
        self.close(name);
    }

    /// Writes an element with escaped text.
    pub(crate) fn text(&mut self, name: &str, text: &str) {
        self.open(name);
        if text
            .bytes()
            .any(|byte| matches!(byte, b'<' | b'>' | b'&' | b'"') || byte < b' ')
        {
            for letter in text.chars() {
                match letter {
                    '<' => self.0.push_str("&lt;"),
                    '>' => self.0.push_str("&gt;"),
                    '&' => self.0.push_str("&amp;"),
                    '"' => self.0.push_str("&quot;"),
                    // Parsers would otherwise collapse white space or normalize line ends.
                    '\r' | '\n' | '\t' => drop(write!(self.0, "&#{};", letter as u32)),
                    letter => self.0.push(letter),
                }
            }
        } else {
            self.0.push_str(text);
        }
        self.close(name);
    }

    /// Writes an element with a number, boolean or address.
    pub(crate) fn value(&mut self, name: &str, value: impl Display) {
        self.open(name);
        let _ = write!(self.0, "{value}");
        self.close(name);
    }

    pub(crate) fn maybe(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    /// Writes an element with nested elements.
    pub(crate) fn nest(&mut self, name: &str, inner: impl FnOnce(&mut Xml)) {
        self.open(name);
        inner(self);
        self.close(name);
    }

    /// Writes a list of `item` elements.
    pub(crate) fn list<T>(
        &mut self,
        name: &str,
        all: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut Xml, T),
    ) {
        self.open(name);
        for element in all {
            self.open("item");
            each(self, element);
            self.close("item");
        }
        self.close(name);
    }

    pub(crate) fn tags(&mut self, tags: &Tags) {
        self.list("tagSet", tags, |xml, (key, value)| {
            xml.text("key", key);
            xml.text("value", value);
        });
    }

    /// Appends XML that was rendered elsewhere.
    pub(crate) fn raw(&mut self, text: &str) {
        self.0.push_str(text);
    }

    /// `<return>true</return>`: the response of a call without a result.
    pub(crate) fn done() -> Xml {
        let mut xml = Xml::new();
        xml.text("return", "true");
        xml
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}
