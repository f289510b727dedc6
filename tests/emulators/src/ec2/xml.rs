//! Answers as XML.

use std::fmt::{Display, Write};

use crate::ec2::model::Tags;

/// An XML text that grows.
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

    /// Empty, with room for this many bytes.
    pub(crate) fn with_room(bytes: usize) -> Xml {
        Xml(String::with_capacity(bytes))
    }

    /// An element with a text in which there is nothing to escape: quicker, and most texts are ids and words of the API.
    pub(crate) fn plain(&mut self, name: &str, text: &str) {
        self.open(name);
        self.0.push_str(text);
        self.close(name);
    }

    /// An element with any text.
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
                    // White space that a parser would otherwise make into one blank, or a new line of its own.
                    '\r' | '\n' | '\t' => drop(write!(self.0, "&#{};", letter as u32)),
                    letter => self.0.push(letter),
                }
            }
        } else {
            self.0.push_str(text);
        }
        self.close(name);
    }

    /// An element with a number, a truth, an address.
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

    /// An element with others in it.
    pub(crate) fn nest(&mut self, name: &str, inner: impl FnOnce(&mut Xml)) {
        self.open(name);
        inner(self);
        self.close(name);
    }

    /// A list: each element is an `item`.
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

    /// What has been written elsewhere.
    pub(crate) fn raw(&mut self, text: &str) {
        self.0.push_str(text);
    }

    /// `<return>true</return>`: what a call answers that has nothing to say.
    pub(crate) fn done() -> Xml {
        let mut xml = Xml::new();
        xml.text("return", "true");
        xml
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}
