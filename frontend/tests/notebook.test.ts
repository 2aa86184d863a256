import { expect, it } from 'vitest'

import { NotebookSource, decodeNotebookData } from '../src/notebook/notebook_data'
import { toShadowCss, isDark } from '../src/notebook/shadow_style'
import { envelope } from './envelope'

const bytes = (text: string) => new TextEncoder().encode(text)

it('reads files from an envelope at any offset of its buffer', async () => {
  const files = [{ name: 'api/state.json', dtype: 'uint8', shape: [2], data: bytes('{}') }, { name: 'api/traces/a/points.raw.bin', dtype: 'uint8', shape: [3], data: bytes('abc') }]
  const bytesOfEnvelope = new Uint8Array(envelope({ trace: 'a' }, files))
  const shifted = new Uint8Array(bytesOfEnvelope.length + 5)
  shifted.set(bytesOfEnvelope, 5)
  const data = decodeNotebookData(new DataView(shifted.buffer, 5))
  expect([data.trace, data.picture, Object.keys(data.files)]).toEqual(['a', null, ['api/state.json', 'api/traces/a/points.raw.bin']])
  const source = new NotebookSource(data.files)
  expect(new TextDecoder().decode(await source.read('api/traces/a/points', { axes: 'all', space: 'raw' }, 'bin'))).toBe('abc')
  await expect(source.read('api/models', {}, 'json')).rejects.toThrow('rheoscope studio')
  await expect(source.send()).rejects.toThrow('rheoscope studio')
})

it('limits the CSS of the page to the widget', () => {
  expect(toShadowCss(":root{--a:1}:root[data-theme=dark]{--a:2}body{margin:0}.body-cell{x:1}a,body p{y:1}")).toBe(
    ":host{--a:1}:host([data-theme=dark]){--a:2}.page{margin:0}.body-cell{x:1}a,.page p{y:1}")
})

it('a background is dark, light or transparent', () => {
  expect(['rgb(17, 17, 17)', 'rgb(255, 255, 255)', 'rgba(0, 0, 0, 0)', 'rgb(30 30 30 / 1)', 'transparent'].map(isDark)).toEqual([true, false, null, true, null])
})
