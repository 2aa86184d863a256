/** What Python sent to a notebook: one envelope, whose arrays are the files of an export, or a picture in its header. */

import { fileOf, inflated, opened, singular, WireError, type Ending, type Picture, type Source } from '../wire'

export interface Sent { trace: string | null; picture: Picture | null; files: Record<string, ArrayBuffer> }

export function sentIn(bytes: DataView): Sent {
  const own = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength).slice().buffer
  const { header, start } = opened(own)
  const files: Record<string, ArrayBuffer> = {}
  for (const { name, offset, shape } of header.arrays) files[name] = own.slice(start + offset, start + offset + shape[0]!)
  return { trace: header.trace ?? null, picture: header.picture ? singular(header.picture) : null, files }
}

export class Held implements Source {
  readonly live = false
  constructor(readonly files: Record<string, ArrayBuffer>, readonly missing: () => string) {}
  async read(path: string, query: Record<string, string>, ending: Ending): Promise<ArrayBuffer> {
    const found = this.files[fileOf(path, query, ending)]
    if (!found) throw new WireError(this.missing(), 404)
    return inflated(found)
  }
  ask(): Promise<never> { return Promise.reject(new WireError(this.missing(), 405)) }
}
