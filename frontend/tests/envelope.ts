import type { ArrayHeader } from '../src/api'

/** Encodes an envelope as the server does. */
export function envelope(header: Record<string, unknown>, arrays: (Omit<ArrayHeader, 'offset' | 'dims'> & { data: ArrayBufferView })[]): ArrayBuffer {
  const headers: ArrayHeader[] = []
  const chunks: Uint8Array[] = []
  let offset = 0
  for (const { data, ...header } of arrays) {
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
    headers.push({ ...header, dims: [], offset: offset })
    const padded = new Uint8Array(Math.ceil(bytes.length / 8) * 8)
    padded.set(bytes)
    chunks.push(padded)
    offset += padded.length
  }
  let text = JSON.stringify({ ...header, arrays: headers })
  while ((new TextEncoder().encode(text).length + 8) % 8) text += ' '
  const encodedHeader = new TextEncoder().encode(text)
  const out = new Uint8Array(8 + encodedHeader.length + offset)
  out.set(new TextEncoder().encode('RHEO'))
  new DataView(out.buffer).setUint32(4, encodedHeader.length, true)
  out.set(encodedHeader, 8)
  let position = 8 + encodedHeader.length
  for (const part of chunks) {
    out.set(part, position)
    position += part.length
  }
  return out.buffer
}
