/** The data that Python sends to a notebook: an envelope with the files of an export as arrays, or with a picture in its header. */

import { ApiError, decompress, exportFile, NOT_EXPORTED, normaliseMarks, readHeader, type Extension, type Picture, type Source } from '../api'

export interface NotebookData { trace: string | null; picture: Picture | null; files: Record<string, ArrayBuffer> }

export function decodeNotebookData(bytes: DataView): NotebookData {
  const buffer = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength).slice().buffer
  const { header, start } = readHeader(buffer)
  const files: Record<string, ArrayBuffer> = {}
  for (const { name, offset, shape } of header.arrays) files[name] = buffer.slice(start + offset, start + offset + shape[0]!)
  return { trace: header.trace ?? null, picture: header.picture ? normaliseMarks(header.picture) : null, files }
}

/** Reads the files that came with the widget. */
export class NotebookSource implements Source {
  readonly isLive = false
  constructor(readonly files: Record<string, ArrayBuffer>) {}
  async read(path: string, query: Record<string, string>, extension: Extension): Promise<ArrayBuffer> {
    const file = this.files[exportFile(path, query, extension)]
    if (!file) throw new ApiError(NOT_EXPORTED, 404)
    return decompress(file)
  }
  send(): Promise<never> { return Promise.reject(new ApiError(NOT_EXPORTED, 405)) }
}
