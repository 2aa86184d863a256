/** An animated GIF of frames of the same size. Pixels that do not change are transparent, which keeps the file small. */

export interface GifFrame { pixels: Uint8ClampedArray; /** In hundredths of a second. */ delay: number }

const TRANSPARENT = 255
const MAX_CODE = 4096

/** Red, green and blue with five bits each. */
const bin = (pixels: Uint8ClampedArray, start: number): number => ((pixels[start]! >> 3) << 10) | ((pixels[start + 1]! >> 3) << 5) | (pixels[start + 2]! >> 3)
const channels = (colour: number): [number, number, number] => [colour >> 10, (colour >> 5) & 31, colour & 31]

/** The most frequent colours of the frames, at most 255. */
export function palette(frames: GifFrame[]): number[] {
  const counts = new Uint32Array(32768)
  for (const { pixels } of frames) for (let start = 0; start < pixels.length; start += 4) counts[bin(pixels, start)]!++
  return [...counts.keys()].filter((colour) => counts[colour]).sort((a, b) => counts[b]! - counts[a]!).slice(0, TRANSPARENT)
}

/** The nearest entry of a palette for every colour, found when it is first needed. */
function nearestEntry(colours: number[]): (colour: number) => number {
  const entries = new Int16Array(32768).fill(-1)
  colours.forEach((colour, index) => (entries[colour] = index))
  const distance = (a: number, b: number) => channels(a).reduce((sum, value, k) => sum + (value - channels(b)[k]!) ** 2, 0)
  return (colour) => {
    if (entries[colour]! < 0) entries[colour] = colours.reduce((best, other, index) => (distance(other, colour) < distance(colours[best]!, colour) ? index : best), 0)
    return entries[colour]!
  }
}

/** Indices as LZW codes of up to 12 bits, in blocks of at most 255 bytes. */
export function compressIndices(indices: Uint8Array): number[] {
  const bytes: number[] = []
  const [clear, end] = [256, 257]
  const children = new Uint16Array(MAX_CODE * 256)
  let [next, bits, buffer, filled] = [258, 9, 0, 0]
  const write = (code: number) => {
    buffer |= code << filled
    for (filled += bits; filled >= 8; filled -= 8, buffer >>>= 8) bytes.push(buffer & 255)
  }
  write(clear)
  let code = indices[0]!
  for (let k = 1; k < indices.length; k++) {
    const child = code * 256 + indices[k]!
    if (children[child]) {
      code = children[child]!
      continue
    }
    write(code)
    code = indices[k]!
    if (next < MAX_CODE) {
      children[child] = next
      if (next++ === 1 << bits && bits < 12) bits++
    } else {
      write(clear)
      children.fill(0)
      ;[next, bits] = [258, 9]
    }
  }
  write(code)
  write(end)
  if (filled) bytes.push(buffer & 255)
  const blocks: number[] = []
  for (let start = 0; start < bytes.length; start += 255) {
    const block = bytes.slice(start, start + 255)
    blocks.push(block.length, ...block)
  }
  return [...blocks, 0]
}

const littleEndian = (value: number): number[] => [value & 255, value >> 8]

/** A GIF that repeats without end. */
export function encodeGif(frames: GifFrame[], width: number, height: number): Uint8Array<ArrayBuffer> {
  const colours = palette(frames)
  const entryOf = nearestEntry(colours)
  const parts: number[][] = [[...new TextEncoder().encode('GIF89a'), ...littleEndian(width), ...littleEndian(height), 0xf7, 0, 0]]
  parts.push(Array.from({ length: 256 }, (_, index) => channels(colours[index] ?? 0).map((value) => (value << 3) | (value >> 2))).flat())
  parts.push([0x21, 0xff, 11, ...new TextEncoder().encode('NETSCAPE2.0'), 3, 1, 0, 0, 0])
  let before: Uint8Array | null = null
  for (const { pixels, delay } of frames) {
    const indices = Uint8Array.from({ length: width * height }, (_, k) => entryOf(bin(pixels, 4 * k)))
    const changed = before ? indices.map((index, k) => (index === before![k] ? TRANSPARENT : index)) : indices
    parts.push([0x21, 0xf9, 4, 0b101, ...littleEndian(delay), TRANSPARENT, 0], [0x2c, 0, 0, 0, 0, ...littleEndian(width), ...littleEndian(height), 0], [8], compressIndices(changed))
    before = indices
  }
  parts.push([0x3b])
  return Uint8Array.from(parts.flat())
}
