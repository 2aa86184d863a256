import type { ArraySaid } from '../src/wire'

/** The slow twin of the server's envelope. */
export function envelope(header: Record<string, unknown>, arrays: (Omit<ArraySaid, 'offset' | 'dims'> & { data: ArrayBufferView })[]): ArrayBuffer {
  const told: ArraySaid[] = []
  const parts: Uint8Array[] = []
  let at = 0
  for (const { data, ...said } of arrays) {
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
    told.push({ ...said, dims: [], offset: at })
    const padded = new Uint8Array(Math.ceil(bytes.length / 8) * 8)
    padded.set(bytes)
    parts.push(padded)
    at += padded.length
  }
  let text = JSON.stringify({ ...header, arrays: told })
  while ((new TextEncoder().encode(text).length + 8) % 8) text += ' '
  const head = new TextEncoder().encode(text)
  const out = new Uint8Array(8 + head.length + at)
  out.set(new TextEncoder().encode('RHEO'))
  new DataView(out.buffer).setUint32(4, head.length, true)
  out.set(head, 8)
  let place = 8 + head.length
  for (const part of parts) {
    out.set(part, place)
    place += part.length
  }
  return out.buffer
}
