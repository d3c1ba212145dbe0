//! Measures the texts at some paths of a JSON document, and counts the images in them, in one pass and without a tree.
//!
//! For estimates: what a document says is not checked. One that is broken, or deeper than serde_json goes, has no sizes.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::config::model::JsonPath;
use crate::proxy::messages::json_values;

/// A text without a space that is longer is taken for data, such as an image.
const DATA_BYTES_MIN: usize = 1024;

/// The size of what stands at a place of a document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TextSize {
    /// The bytes of names, texts and numbers, but for the data of images.
    pub(crate) bytes: u64,
    /// Those of them that are in long texts in the letters of base64.
    data_bytes: u64,
    /// The number of these texts.
    data: u64,
    /// The number of parts that say that they are images.
    pub(crate) images: u64,
}

impl TextSize {
    /// Returns the size of a part that says that it is an image: the one text of data in it is the image, and does not count by its bytes.
    /// Of several nobody knows which is.
    fn of_image(self) -> TextSize {
        let images = self.images.max(1);
        if self.data == 1 {
            TextSize { bytes: self.bytes - self.data_bytes, images, ..TextSize::default() }
        } else {
            TextSize { images, ..self }
        }
    }

    fn add(&mut self, other: TextSize) {
        self.bytes += other.bytes;
        self.data_bytes += other.data_bytes;
        self.data += other.data;
        self.images += other.images;
    }

    fn of_bytes(bytes: usize) -> TextSize {
        TextSize { bytes: bytes as u64, ..TextSize::default() }
    }

    fn of_text(text: &str) -> TextSize {
        let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(byte);
        let data = text.split_once(";base64,").map_or(text, |(_, data)| data);
        if data.len() >= DATA_BYTES_MIN && data.as_bytes().iter().all(is_base64) {
            TextSize { data: 1, data_bytes: text.len() as u64, ..TextSize::of_bytes(text.len()) }
        } else {
            TextSize::of_bytes(text.len())
        }
    }
}

/// Returns the size of what stands at each path; `None` where nothing does.
pub(crate) fn sizes_at(document: &[u8], paths: &[JsonPath]) -> Vec<Option<TextSize>> {
    let mut found = vec![None; paths.len()];
    let all: Vec<_> = paths.iter().enumerate().map(|(index, path)| (index, path.steps())).collect();
    let mut deserializer = serde_json::Deserializer::from_slice(document);
    if (Locate { ways: &all, found: &mut found }).deserialize(&mut deserializer).is_err() {
        found.fill(None);
    }
    found
}

/// The number of a path, and the steps of it that are left.
type Way<'a> = (usize, &'a [Box<str>]);

/// The ways from a value to those that are measured.
struct Locate<'a> {
    ways: &'a [Way<'a>],
    found: &'a mut [Option<TextSize>],
}

impl<'de> DeserializeSeed<'de> for Locate<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        // A path that leads further inside is part of it.
        let Some((path, _)) = self.ways.iter().find(|(_, steps)| steps.is_empty()) else {
            return deserializer.deserialize_any(self);
        };
        let size = Measure { is_kind: false }.deserialize(deserializer)?;
        self.found[*path].get_or_insert_default().add(size);
        Ok(())
    }
}

impl<'de> Visitor<'de> for Locate<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut inside: Vec<Way<'_>> = Vec::new();
        while let Some(name) = members.next_key::<String>()? {
            inside.clear();
            let next = self.ways.iter().filter_map(|(path, steps)| Some((*path, steps.split_first()?)));
            inside
                .extend(next.filter(|(_, (step, _))| ***step == *name).map(|(path, (_, rest))| (path, rest)));
            if inside.is_empty() {
                members.next_value::<IgnoredAny>()?;
            } else {
                members.next_value_seed(Locate { ways: &inside, found: self.found })?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        for index in 0_usize.. {
            let next = self.ways.iter().filter_map(|(path, steps)| Some((*path, steps.split_first()?)));
            let here = next.filter(|(_, (step, _))| json_values::index(step) == Some(index));
            let inside: Vec<Way<'_>> = here.map(|(path, (_, rest))| (path, rest)).collect();
            let element = if inside.is_empty() {
                elements.next_element::<IgnoredAny>()?.map(|_| ())
            } else {
                elements.next_element_seed(Locate { ways: &inside, found: self.found })?
            };
            if element.is_none() {
                break;
            }
        }
        Ok(())
    }
}

/// Measures a value with all that it holds.
#[derive(Clone, Copy)]
struct Measure {
    /// A text may say that what it is in is an image.
    is_kind: bool,
}

impl<'de> DeserializeSeed<'de> for Measure {
    type Value = TextSize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<TextSize, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Measure {
    type Value = TextSize;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<TextSize, E> {
        Ok(TextSize::of_bytes(4))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<TextSize, E> {
        Ok(TextSize::of_bytes(value.to_string().len()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<TextSize, E> {
        Ok(TextSize::of_bytes(value.to_string().len()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<TextSize, E> {
        Ok(TextSize::of_bytes(value.to_string().len()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<TextSize, E> {
        let is_image = matches!(text, "image" | "image_url" | "input_image") || text.starts_with("image/");
        Ok(TextSize { images: (self.is_kind && is_image).into(), ..TextSize::of_text(text) })
    }

    fn visit_unit<E: Error>(self) -> Result<TextSize, E> {
        Ok(TextSize::of_bytes(4))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<TextSize, A::Error> {
        let mut size = TextSize::default();
        let mut is_image = false;
        while let Some(name) = members.next_key::<String>()? {
            size.bytes += name.len() as u64;
            let is_kind = matches!(&*name, "type" | "mimeType" | "mime_type");
            let mut value = members.next_value_seed(Measure { is_kind })?;
            if is_kind && std::mem::take(&mut value.images) > 0 {
                is_image = true;
            }
            // Bedrock's Converse tells an image by the name alone.
            size.add(if name == "image" && value.data == 1 { value.of_image() } else { value });
        }
        Ok(if is_image { size.of_image() } else { size })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<TextSize, A::Error> {
        let mut size = TextSize::default();
        while let Some(element) = elements.next_element_seed(Measure { is_kind: false })? {
            size.add(element);
        }
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(document: &str, path: &str) -> Option<TextSize> {
        sizes_at(document.as_bytes(), &[JsonPath::parse(path).unwrap()])[0]
    }

    #[test]
    fn the_text_at_a_path_is_measured() {
        let document = r#"{"messages": [{"role": "user", "content": "hello"}], "other": "xxxx", "n": 12}"#;
        assert_eq!(size(document, "messages").unwrap().bytes, 20);
        assert_eq!(size(document, "n").unwrap().bytes, 2);
        assert_eq!(size(document, "messages.0.content").unwrap().bytes, 5);
        assert_eq!((size(document, "input"), size("{\"messages\": [", "messages")), (None, None));
        let deep = format!("{{\"messages\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(size(&deep, "messages"), None);
    }

    #[test]
    fn data_beside_an_image_counts_by_its_bytes() {
        let data = "QUJD".repeat(1000);
        let url = r#"{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}"#;
        let image = format!(r#"{{"type": "image", "mime_type": "image/png", "data": "{data}"}}"#);
        let pdf = format!(r#"{{"type": "input_file", "file_data": "data:application/pdf;base64,{data}"}}"#);
        let both = format!(r#"{{"type": "image", "data": "{data}", "thumbnail": "{data}"}}"#);
        for (parts, images, data_bytes) in [
            (vec![url, &pdf], 1, 4000),
            (vec![&*image, &pdf], 1, 4000),
            (vec![&*image, &image], 2, 0),
            (vec![&*image, url], 2, 0),
            (vec![&*both], 1, 8000),
        ] {
            let found = size(&format!(r#"{{"input": [{}]}}"#, parts.join(", ")), "input").unwrap();
            let expected = (images, true);
            assert_eq!(
                (found.images, (data_bytes..data_bytes + 200).contains(&found.bytes)),
                expected,
                "{parts:?}"
            );
        }
    }

    #[test]
    fn an_image_counts_by_number_and_other_data_by_its_bytes() {
        let data = "QUJD".repeat(1000);
        let image = format!(
            r#"{{"messages": [{{"content": [{{"type": "image_url", "image_url": {{"url": "data:image/png;base64,{data}"}}}}]}}]}}"#
        );
        let found = size(&image, "messages").unwrap();
        assert!((found.images, found.bytes < 100) == (1, true), "{found:?}");
        let gemini =
            format!(r#"{{"contents": [{{"inlineData": {{"mimeType": "image/png", "data": "{data}"}}}}]}}"#);
        let found = size(&gemini, "contents").unwrap();
        assert!((found.images, found.bytes < 100) == (1, true), "{found:?}");
        let converse = format!(
            r#"{{"messages": [{{"content": [{{"image": {{"format": "png", "source": {{"bytes": "{data}"}}}}}}]}}]}}"#
        );
        let found = size(&converse, "messages").unwrap();
        assert!((found.images, found.bytes < 100) == (1, true), "{found:?}");
        let other = format!(r#"{{"contents": [{{"data": "{data}"}}]}}"#);
        assert!(size(&other, "contents").unwrap().bytes > 4000);
        let words = format!(r#"{{"contents": "{}"}}"#, "many words ".repeat(1000));
        assert_eq!(size(&words, "contents").unwrap().bytes, 11_000);
    }
}
