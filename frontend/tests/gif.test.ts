import { expect, it } from 'vitest'

import { playheads } from '../src/share/flow_frames'
import { compressIndices, encodeGif, palette } from '../src/share/gif'

/** Decodes LZW blocks, to check the encoder. */
function decompress(blocks: number[]): number[] {
  const bytes: number[] = []
  for (let k = 0; blocks[k]; k += blocks[k]! + 1) bytes.push(...blocks.slice(k + 1, k + 1 + blocks[k]!))
  let [position, bits] = [0, 9]
  const read = () => {
    let code = 0
    for (let k = 0; k < bits; k++, position++) code |= ((bytes[position >> 3]! >> (position & 7)) & 1) << k
    return code
  }
  let table: number[][] = []
  const out: number[] = []
  let previous: number[] | null = null
  for (;;) {
    const code = read()
    if (code === 257) return out
    if (code === 256) {
      table = Array.from({ length: 258 }, (_, k) => [k])
      bits = 9
      previous = null
      continue
    }
    const entry: number[] = table[code] ?? [...previous!, previous![0]!]
    out.push(...entry)
    if (previous && table.length < 4096) table.push([...previous, entry[0]!])
    if (table.length === 1 << bits && bits < 12) bits++
    previous = entry
  }
}

it('indices survive compression, also when the table is full', () => {
  let seed = 7
  const random = Uint8Array.from({ length: 30_000 }, () => (seed = (seed * 1103515245 + 12345) & 0x7fffffff) >> 16)
  for (const indices of [Uint8Array.of(3), new Uint8Array(5000).fill(9), random]) expect(decompress(compressIndices(indices))).toEqual([...indices])
})

it('a palette has the most frequent colours, and a GIF starts and ends as the format demands', () => {
  const pixels = Uint8ClampedArray.of(255, 0, 0, 255, 255, 0, 0, 255, 0, 0, 255, 255, 0, 0, 255, 255)
  expect(palette([{ pixels, delay: 1 }]).sort((a, b) => a - b)).toEqual([31, 31 << 10])
  const gif = encodeGif([{ pixels, delay: 5 }, { pixels, delay: 5 }], 2, 2)
  expect(new TextDecoder().decode(gif.slice(0, 6))).toBe('GIF89a')
  expect([gif[6], gif[8], gif.at(-1)]).toEqual([2, 2, 0x3b])
})

it('frames cover every step, with few between them in deep models', () => {
  expect(playheads(3)).toHaveLength(13)
  expect(playheads(3).at(-1)).toBe(2)
  expect(playheads(97).length).toBe(97)
})
