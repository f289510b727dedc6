use super::*;

fn data(bytes: &[u8]) -> Chunk {
    of(Content::Data(bytes.to_vec()))
}

#[test]
fn characters_that_come_in_pieces_are_put_together_and_no_text_is_replaced() {
    let all = "x€y\u{1f980}".as_bytes();
    for at in 0..=all.len() {
        let mut text = Text::new(true);
        let mut chunks = text.chunks(data(&all[..at]));
        chunks.extend(text.chunks(data(&all[at..])));
        chunks.extend(text.rest());
        let joined: Vec<u8> = chunks.into_iter().flat_map(bytes).collect();
        assert_eq!(joined, all);
    }
    let mut text = Text::new(true);
    let mut chunks = text.chunks(data(b"a\xffb\xe2\x82"));
    chunks.extend(text.rest());
    let joined: Vec<u8> = chunks.into_iter().flat_map(bytes).collect();
    assert_eq!(joined, "a\u{fffd}b\u{fffd}".as_bytes());
}

#[test]
fn chunks_are_no_longer_than_they_may_be_and_lose_nothing() {
    let all = "€".repeat(50_000).into_bytes();
    for as_text in [true, false] {
        let chunks = Text::new(as_text).chunks(data(&all));
        let sizes: Vec<usize> = chunks.iter().cloned().map(|one| bytes(one).len()).collect();
        assert!(sizes.iter().all(|size| *size <= MAX_CHUNK), "{sizes:?}");
        let joined: Vec<u8> = chunks.into_iter().flat_map(bytes).collect();
        assert_eq!(joined, all);
    }
}
